"""Go's durations: https://pkg.go.dev/time#ParseDuration."""

import pytest

from cli_mcp.api.duration import InvalidDuration, parse_seconds


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("30m", 1800),
        ("1h30m", 5400),
        ("1.5h", 5400),
        (".5s", 0.5),
        ("5.s", 5),
        ("+5s", 5),
        ("-2m", -120),
        ("0", 0),
        ("-0", 0),
        ("0h", 0),
        ("1h1h", 7200),
        ("3m2h", 7380),
        ("1ms", 0.001),
        ("2us", 0.000_002),
        ("2µs", 0.000_002),
        ("2μs", 0.000_002),
        ("7ns", 0.000_000_007),
        ("0.3ns", 0),
        ("2562047h", 9_223_369_200),
    ],
)
def test_what_go_accepts_is_read(text: str, seconds: float) -> None:
    assert parse_seconds(text) == pytest.approx(seconds, abs=1e-12)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "+",
        "-",
        "90",
        "s",
        ".s",
        "1d",
        "1w",
        "1H",
        "1 h",
        "1h ",
        "1h\n",
        "1h30",
        "1,5h",
        "--1s",
        "-+1s",
        "1h-5m",
        "1e3s",
        "٣s",  # a digit, but not one of Go's
        "2562048h",
        "9" * 63 + "s",
        "1s" * 1000,
    ],
)
def test_what_go_refuses_is_refused(text: str) -> None:
    with pytest.raises(InvalidDuration):
        parse_seconds(text)
