"""The admin's Secrets: missing, incomplete, expiring."""

import base64
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from cli_mcp.api.instance import InstanceSpec
from cli_mcp.authority import VALIDITY, generate_authority
from hooks.credentials import WARN_BEFORE_EXPIRY, check_expiry, check_secrets
from hooks.generated import GeneratedSecret, encoded_data
from hooks.problem import Problem, Reason
from hooks.wire import CHILD_KINDS, SECRET, HookRequest, Parent
from tests.hooks.world import KUBECONFIG

NOW = datetime(2026, 1, 1, tzinfo=UTC)
CERTIFICATE, _ = generate_authority("test", NOW)
EXPIRES = NOW + VALIDITY
NO_CA = GeneratedSecret("cli-mcp-demo-proxy-ca", "proxy", {}, "", observed=True)


def request(**secrets: dict[str, str]) -> HookRequest:
    """Secrets by name, `_` for `-`."""
    related = {f"ns/{name.replace('_', '-')}": {"data": encoded_data(data)} for name, data in secrets.items()}
    parent = Parent({"metadata": {}}, "demo", "ns", "u", 1)
    return HookRequest(parent, {kind.key: {} for kind in CHILD_KINDS}, {SECRET.key: related})


SSH = {"routes": [{"username": "a", "authorizedKeysSecret": "keys"}], "hostKeySecret": "host"}


@pytest.mark.parametrize(
    ("secrets", "spec", "expected"),
    [
        ({"cli_mcp_demo_tls": {"tls.crt": "c", "tls.key": "k"}}, {}, []),
        (
            {},
            {},
            [
                (
                    Reason.SECRETS_NOT_FOUND,
                    "Secret cli-mcp-demo-tls is missing; create it with tls.crt and tls.key",
                )
            ],
        ),
        (
            {"cli_mcp_demo_tls": {"tls.crt": "c", "tls.key": ""}},
            {},
            [(Reason.SECRET_KEYS_INVALID, "Secret cli-mcp-demo-tls lacks tls.key; add the key")],
        ),
        (
            {"cli_mcp_demo_tls": {"tls.crt": "c", "tls.key": "k"}, "keys": {"x": "y"}},
            {"ssh": SSH},
            [
                (Reason.SECRET_KEYS_INVALID, "Secret keys lacks authorized_keys; add the key"),
                (Reason.SECRETS_NOT_FOUND, "Secret host is missing; create it with ssh_host_ed25519_key"),
            ],
        ),
    ],
)
def test_what_an_admin_has_to_provide_is_named(
    secrets: dict[str, dict[str, str]], spec: dict[str, Any], expected: list[tuple[Reason, str]]
) -> None:
    problems = check_secrets(request(**secrets), InstanceSpec.model_validate(spec))
    assert [(problem.reason, problem.message) for problem in problems] == expected


def jwt(**claims: Any) -> str:
    encoded = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"e30.{encoded}.c2ln"


def kubeconfig(token: str) -> dict[str, str]:
    return {"kubeconfig": json.dumps(KUBECONFIG | {"users": [{"name": "robot", "user": {"token": token}}]})}


def expiry(
    now: datetime, ca: GeneratedSecret = NO_CA, **secrets: dict[str, str]
) -> tuple[list[Problem], datetime | None]:
    return check_expiry(request(**secrets), "own", ca, now)


CASES = {
    "TLS certificate": (
        {"cli_mcp_demo_tls": {"tls.crt": CERTIFICATE}},
        NO_CA,
        "certificate in Secret cli-mcp-demo-tls",
    ),
    "CA": (
        {},
        GeneratedSecret("cli-mcp-demo-proxy-ca", "proxy", {"ca.crt": CERTIFICATE}, "", observed=True),
        "the proxy's CA in Secret cli-mcp-demo-proxy-ca",
    ),
    "token": (
        {"own": kubeconfig(jwt(exp=int(EXPIRES.timestamp())))},
        NO_CA,
        'the token of context "main" in Secret own',
    ),
}


@pytest.mark.parametrize(("secrets", "ca", "text"), CASES.values(), ids=CASES)
def test_an_expiry_is_said_ahead_and_fails_when_it_comes(
    secrets: dict[str, dict[str, str]], ca: GeneratedSecret, text: str
) -> None:
    assert expiry(NOW, ca, **secrets) == ([], EXPIRES - WARN_BEFORE_EXPIRY)
    for before in (WARN_BEFORE_EXPIRY, timedelta(seconds=1)):
        [problem], next_change = expiry(EXPIRES - before, ca, **secrets)
        assert problem.reason is Reason.CREDENTIAL_EXPIRING
        assert problem.warning
        assert text in problem.message
        assert "expires at 2027-01-01T00:00:00Z" in problem.message
        assert next_change == EXPIRES
    [problem], next_change = expiry(EXPIRES, ca, **secrets)
    assert problem.reason is Reason.CREDENTIAL_EXPIRED
    assert not problem.warning
    assert "expired at" in problem.message
    assert next_change is None


@pytest.mark.parametrize(
    ("life", "said_before"),
    [
        (timedelta(hours=1), timedelta(minutes=15)),
        (timedelta(days=1), timedelta(hours=6)),
        (timedelta(days=365), WARN_BEFORE_EXPIRY),
    ],
)
def test_a_short_life_is_not_about_to_end_from_its_first_second(
    life: timedelta, said_before: timedelta
) -> None:
    token = jwt(iat=int(NOW.timestamp()), exp=int((NOW + life).timestamp()))
    mentioned = NOW + life - said_before
    assert expiry(NOW, own=kubeconfig(token)) == ([], mentioned)
    [problem], next_change = expiry(mentioned, own=kubeconfig(token))
    assert problem.warning
    assert next_change == NOW + life


@pytest.mark.parametrize(
    "token",
    ["opaque", "a.b.c", jwt(sub="x"), jwt(exp="soon"), jwt(exp=10**30), "e30.W10.c2ln", "e30.bnVsbA.c2ln"],
)
def test_a_token_without_a_readable_expiry_is_nothing_to_say(token: str) -> None:
    assert expiry(NOW, own=kubeconfig(token)) == ([], None)


def test_what_cannot_be_read_is_said_elsewhere() -> None:
    assert expiry(NOW, cli_mcp_demo_tls={"tls.crt": "nonsense"}, own={"kubeconfig": "{"}) == ([], None)


def test_a_ca_that_is_not_observed_yet_is_nothing_to_say() -> None:
    unseen = GeneratedSecret("cli-mcp-demo-proxy-ca", "proxy", {"ca.crt": CERTIFICATE}, "", observed=False)
    assert expiry(NOW, unseen) == ([], None)
