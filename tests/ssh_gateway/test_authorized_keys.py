"""authorized_keys: what each option does to a key, and what is refused instead of ignored."""

import ipaddress
from datetime import UTC, datetime

import asyncssh
import pytest

from ssh_gateway.authorized_keys import AuthorizedKey, fingerprint, parse
from tests.ssh_gateway.harness import KEY, OTHER_KEY, public

HOME = ipaddress.ip_address("192.0.2.7")
AWAY = ipaddress.ip_address("198.51.100.1")
NOW = datetime(2030, 6, 1, 12, 0, tzinfo=UTC)
LINE = public(KEY)


def the_key(line: str) -> AuthorizedKey:
    keys = parse(line)
    assert not keys.unreadable
    (key,) = keys.keys
    return key


def refusal(line: str, address: ipaddress.IPv4Address | ipaddress.IPv6Address = HOME) -> str | None:
    return the_key(line).refusal(address, NOW)


def test_a_file_has_keys_comments_and_blank_lines() -> None:
    keys = parse(f"# the agents\n\n{LINE} first@host with words\n   {public(OTHER_KEY)}\n")
    assert [key.line for key in keys.keys] == [3, 4]
    assert keys.find(KEY.public_data)[0].refusal(HOME, NOW) is None
    assert keys.find(b"another") == ()
    assert keys.problems() == []


@pytest.mark.parametrize(
    "options",
    [
        "restrict",
        "no-pty,no-port-forwarding,no-agent-forwarding,no-X11-forwarding,no-user-rc",
        'permitopen="host:80",permitlisten="8080"',
        "RESTRICT",
        'from="*"',
        'from="192.0.2.0/24"',
        'from="192.0.2.7"',
        'from="198.51.100.*,192.0.2.?"',
        'from="10.0.0.0/8,192.0.2.0/24",restrict',
        'expiry-time="20300602"',
        'expiry-time="20300601120001Z"',
        'expiry-time="203006020000"',
    ],
)
def test_a_key_with_options_that_are_met_lets_in(options: str) -> None:
    assert refusal(f"{options} {LINE}") is None


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ('from="198.51.100.0/24"', "from="),
        ('from="192.0.2.0/24,!192.0.2.7"', "from="),
        ('from="!198.51.100.1"', "from="),
        ('from="192.0.2.70"', "from="),
        ('expiry-time="20300601"', "expired"),
        ('expiry-time="20300601120000Z"', "expired"),
        ('expiry-time="200001010000"', "expired"),
    ],
)
def test_a_key_with_options_that_are_not_met_keeps_out(options: str, reason: str) -> None:
    assert reason in (refusal(f"{options} {LINE}") or "")
    assert the_key(f"{options} {LINE}").problem is None


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ('command="/bin/date"', "command"),
        ('environment="A=b"', "environment"),
        ("cert-authority", "certificates"),
        ('principals="a,b"', "certificates"),
        ("pty", "remove it"),
        ("restrict,port-forwarding", "remove it"),
        ("agent-forwarding", "remove it"),
        ("x11-forwarding", "remove it"),
        ("user-rc", "remove it"),
        ('tunnel="0"', "remove it"),
        ("verify-required", "hardware"),
        ("no-touch-required", "hardware"),
        ("invented", "not known"),
        ('invented="x"', "not known"),
        ("from", "needs a value"),
        ('from=""', "needs a value"),
        ('from="example.com"', "host names"),
        ('from="*.example.com"', "host names"),
        ('from="192.0.2.7/24"', "no network"),
        ('from="192.0.2.7/99"', "no network"),
        ('from="192.0.2.7",from="*"', "twice"),
        ("expiry-time", "needs a value"),
        ('expiry-time="tomorrow"', "YYYYMMDD"),
        ('expiry-time="20301301"', "no date"),
        ('expiry-time="20300101",expiry-time="20310101"', "twice"),
    ],
)
def test_an_option_that_cannot_be_honoured_closes_its_line_and_says_so(options: str, problem: str) -> None:
    line = f"{options} {LINE}"
    assert problem in (the_key(line).problem or "")
    assert "line 1" in (refusal(line) or "")
    assert problem in parse(line).problems()[0]


@pytest.mark.parametrize(
    "line",
    [
        "restrict",
        "ssh-ed25519",
        "ssh-ed25519 not*base64",
        'from="192.0.2.7 ssh-ed25519 AAAA',
        'from="a"x ssh-ed25519 AAAA',
        "restrict, ssh-ed25519 AAAA",
        "-----BEGIN OPENSSH PRIVATE KEY-----",
    ],
)
def test_a_line_without_a_key_lets_nobody_in_and_is_reported(line: str) -> None:
    keys = parse(line)
    assert not keys.keys
    assert len(keys.problems()) == 1


@pytest.mark.parametrize("bits", [1024, 2048])
def test_a_short_rsa_key_is_refused(bits: int) -> None:
    assert f"{bits} bits" in (refusal(public(asyncssh.generate_private_key("ssh-rsa", key_size=bits))) or "")


@pytest.mark.parametrize(
    "key",
    [
        asyncssh.generate_private_key("ssh-rsa", key_size=3072),
        *(asyncssh.generate_private_key(f"ecdsa-sha2-nistp{size}") for size in (256, 384, 521)),
    ],
    ids=lambda key: key.get_algorithm(),
)
def test_the_other_common_kinds_of_keys_let_in(key: asyncssh.SSHKey) -> None:
    assert refusal(public(key)) is None


@pytest.mark.parametrize(
    "key_type", ["ssh-dss", "sk-ssh-ed25519@openssh.com", "ssh-ed25519-cert-v01@openssh.com"]
)
def test_other_kinds_of_keys_are_refused_by_name(key_type: str) -> None:
    assert f"type {key_type} are not accepted" in (refusal(f"{key_type} {LINE.split()[1]}") or "")


def test_a_key_that_is_none_of_its_type_is_refused() -> None:
    assert "no ssh-rsa key" in (refusal(f"ssh-rsa {LINE.split()[1]}") or "")


def test_ipv6_addresses_are_matched_as_networks_and_patterns() -> None:
    address = ipaddress.ip_address("2001:db8::7")
    assert refusal(f'from="2001:DB8::/32" {LINE}', address) is None
    assert refusal(f'from="2001:db8::*" {LINE}', address) is None
    assert refusal(f'from="192.0.2.0/24" {LINE}', address) is not None


def test_one_of_two_lines_for_a_key_is_enough() -> None:
    keys = parse(f'from="198.51.100.1" {LINE}\nfrom="192.0.2.7" {LINE}').find(KEY.public_data)
    assert [key.refusal(HOME, NOW) is None for key in keys] == [False, True]
    assert [key.refusal(AWAY, NOW) is None for key in keys] == [True, False]


def test_the_fingerprint_is_the_one_that_ssh_shows() -> None:
    assert fingerprint(KEY.public_data) == KEY.get_fingerprint()
