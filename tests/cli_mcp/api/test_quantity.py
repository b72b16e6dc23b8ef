"""Kubernetes quantities in bytes and thousandths of a core."""

import pytest

from cli_mcp.api.quantity import InvalidQuantity, parse, parse_bytes, parse_millicores


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("0", 0),
        ("128Mi", 134_217_728),
        ("1Gi", 1_073_741_824),
        ("10G", 10_000_000_000),
        ("1k", 1000),
        ("1Ki", 1024),
        ("1.5Gi", 1_610_612_736),
        (".5Ki", 512),
        ("5.Ki", 5120),
        ("+1M", 1_000_000),
        ("1e3", 1000),
        ("1E3", 1000),
        ("1E", 10**18),
        ("1Ei", 2**60),
        ("12e-1", 2),
        ("1500m", 2),
        ("1n", 1),
    ],
)
def test_bytes_are_whole_and_rounded_up(text: str, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize(
    ("text", "millicores"),
    [("1", 1000), ("100m", 100), ("0.1", 100), ("0.0001", 1), ("2", 2000), ("100u", 1), ("1e-1", 100)],
)
def test_cpu_is_in_thousandths_of_a_core(text: str, millicores: int) -> None:
    assert parse_millicores(text) == millicores


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-1Ki",
        "Mi",
        ".",
        "1KB",
        "1ki",
        "1mi",
        "1K",
        "1 Gi",
        "1Gi\n",
        "1,5",
        "0x10",
        "1e",
        "1e1000",
        "1Mii",
        "--1",
    ],
)
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(InvalidQuantity):
        parse(text)
