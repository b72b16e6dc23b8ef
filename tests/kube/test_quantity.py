"""Canonical quantities, as a real API server stored them."""

import pytest

from tests.kube.quantity import canonical


@pytest.mark.parametrize(
    ("written", "stored"),
    [
        ("1000m", "1"),
        ("0.5", "500m"),
        (0.5, "500m"),
        (2, "2"),
        ("1500m", "1500m"),
        ("1024Mi", "1Gi"),
        ("1.5Gi", "1536Mi"),
        ("0.5Gi", "512Mi"),
        ("1500Ki", "1500Ki"),
        ("0.1Ki", "102400m"),
        ("1000000", "1M"),
        ("1500", "1500"),
        ("1024", "1024"),
        ("1e3", "1e3"),
        ("12e6", "12e6"),
        ("1e4", "10e3"),
        ("1e-3", "1e-3"),
        ("0", "0"),
        ("0Mi", "0"),
        ("100M", "100M"),
    ],
)
def test_a_quantity_is_stored_in_its_canonical_form(written: str | float, stored: str) -> None:
    assert canonical(written) == stored
    assert canonical(stored) == stored


@pytest.mark.parametrize("text", ["", "abc", "1 Gi", "1KiB", "--1", "1e"])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a quantity"):
        canonical(text)
