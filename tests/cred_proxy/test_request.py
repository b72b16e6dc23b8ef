"""The verdict on a request head, without any I/O."""

import pytest

from cli_mcp.api.endpoint import Endpoint
from cli_mcp.kubeconfig import KubernetesServer
from cli_mcp.proxy_config import OwnSecrets
from cred_proxy.refusal import Reason, Refusal
from cred_proxy.request import Forward, RequestHead, host_field, judge_request
from cred_proxy.routes import AllowlistRoute, KubernetesRoute, Route

HOST = Endpoint("git.example.com", 443)
API = Endpoint("api.example.com", 6443)
ALLOWLIST = AllowlistRoute(HOST)
UPGRADES = AllowlistRoute(HOST, allow_upgrades=True)
KUBERNETES = KubernetesRoute(KubernetesServer(API, "", "real-token"))
OWN = KubernetesRoute(
    KubernetesServer(API, "/k8s", "real-token"), OwnSecrets(namespace="team", names=("key", "ca"))
)


def head(
    route: Route = ALLOWLIST,
    method: str = "GET",
    target: str = "/api/v1/pods",
    version: tuple[int, int] = (1, 1),
    host: str | None = None,
    **fields: str,
) -> RequestHead:
    named = [(name.replace("_", "-"), value) for name, value in fields.items()]
    return RequestHead(method, target, version, [("Host", host or str(route.endpoint)), *named])


def reason_of(verdict: Forward | Refusal) -> Reason:
    assert isinstance(verdict, Refusal)
    return verdict.reason


@pytest.mark.parametrize("host", ["git.example.com", "git.example.com:443", "GIT.example.com"])
def test_the_host_may_be_written_with_its_port_or_without_the_default_one(host: str) -> None:
    verdict = judge_request(head(host=host), ALLOWLIST)
    assert isinstance(verdict, Forward)
    assert verdict.fields == [("Host", "git.example.com")]


@pytest.mark.parametrize(
    "host",
    [
        "api.example.com",
        "api.example.com:443",
        "evil.example",
        "",
        "u@api.example.com:6443",
        "api.example.com.:6443",
    ],
)
def test_any_other_host_is_misdirected(host: str) -> None:
    fields = [("Host", host)]
    verdict = judge_request(RequestHead("GET", "/", (1, 1), fields), KUBERNETES)
    assert reason_of(verdict) is Reason.HOST_MISMATCH


@pytest.mark.parametrize(
    ("route", "request_head", "reason"),
    [
        (ALLOWLIST, head(version=(2, 0)), Reason.HTTP_VERSION),
        (ALLOWLIST, head(version=(0, 9)), Reason.HTTP_VERSION),
        (ALLOWLIST, head(method="TRACE"), Reason.METHOD_NOT_ALLOWED),
        (ALLOWLIST, head(method="CONNECT"), Reason.METHOD_NOT_ALLOWED),
        (KUBERNETES, head(KUBERNETES, method="TRACE"), Reason.METHOD_NOT_ALLOWED),
        (KUBERNETES, head(KUBERNETES, method="PROPFIND"), Reason.METHOD_NOT_ALLOWED),
        (ALLOWLIST, head(target="https://evil.example/"), Reason.BAD_REQUEST),
        (ALLOWLIST, head(target="https://git.example.com/"), Reason.BAD_REQUEST),
        (ALLOWLIST, head(target="@evil.example/"), Reason.BAD_REQUEST),
        (ALLOWLIST, head(target="*", method="OPTIONS"), Reason.BAD_REQUEST),
        (ALLOWLIST, head(target=""), Reason.BAD_REQUEST),
        (ALLOWLIST, head(target="/a#b"), Reason.BAD_REQUEST),
        (ALLOWLIST, head(target="/a b"), Reason.BAD_REQUEST),
        (ALLOWLIST, head(target="/a\x00"), Reason.BAD_REQUEST),
        (ALLOWLIST, head(target="/\udce9"), Reason.BAD_REQUEST),
        (ALLOWLIST, head(Content_Length="+5"), Reason.BAD_REQUEST),
        (ALLOWLIST, head(Content_Length="5, 5"), Reason.BAD_REQUEST),
        (ALLOWLIST, head(Content_Length="5", Transfer_Encoding="chunked"), Reason.BAD_REQUEST),
        (ALLOWLIST, head(Content_Length="5", content_length="6"), Reason.BAD_REQUEST),
        (ALLOWLIST, head(Transfer_Encoding="gzip, chunked"), Reason.TRANSFER_CODING),
        (ALLOWLIST, head(Transfer_Encoding="identity"), Reason.TRANSFER_CODING),
        (ALLOWLIST, head(Transfer_Encoding="chunked", version=(1, 0)), Reason.TRANSFER_CODING),
        (ALLOWLIST, head(Expect="200-ok"), Reason.EXPECTATION),
        (ALLOWLIST, head(X="\udce9"), Reason.BAD_REQUEST),
        (ALLOWLIST, head(Connection="Upgrade", Upgrade="websocket"), Reason.UPGRADE_NOT_ALLOWED),
        (ALLOWLIST, head(Upgrade="h2c"), Reason.UPGRADE_NOT_ALLOWED),
        (ALLOWLIST, head(Connection="close, upgrade"), Reason.UPGRADE_NOT_ALLOWED),
        (UPGRADES, head(Connection="Upgrade", Upgrade="h2c"), Reason.UPGRADE_NOT_ALLOWED),
        (UPGRADES, head(Connection="Upgrade", Upgrade="websocket, h2c"), Reason.UPGRADE_NOT_ALLOWED),
        (
            UPGRADES,
            head(Connection="Upgrade", Upgrade="websocket", method="POST"),
            Reason.UPGRADE_NOT_ALLOWED,
        ),
        (
            UPGRADES,
            head(Connection="Upgrade", Upgrade="websocket", Content_Length="3"),
            Reason.UPGRADE_NOT_ALLOWED,
        ),
        (KUBERNETES, head(KUBERNETES, Connection="Upgrade", Upgrade="SPDY/3.1"), Reason.UPGRADE_NOT_ALLOWED),
        (KUBERNETES, head(KUBERNETES, Connection="Upgrade", Upgrade="websocket"), Reason.UPGRADE_NOT_ALLOWED),
        (KUBERNETES, head(KUBERNETES, target="/api/v1/nodes/n/proxy/run"), Reason.PATH_NOT_ALLOWED),
        (KUBERNETES, head(KUBERNETES, Impersonate_User="nobody"), Reason.FIELD_NOT_ALLOWED),
        (OWN, head(OWN, target="/k8s/api/v1/secrets"), Reason.WITHHELD),
        (OWN, head(OWN, target="/k8s/api/v1/namespaces/team/%73ecrets/%6bey"), Reason.WITHHELD),
        (OWN, head(OWN, target="/k8s/api/v1/namespaces/team/secrets/key?x", method="PATCH"), Reason.WITHHELD),
    ],
)
def test_refused_with_its_reason(route: Route, request_head: RequestHead, reason: Reason) -> None:
    assert reason_of(judge_request(request_head, route)) is reason


def test_a_request_without_or_with_two_hosts_is_malformed() -> None:
    for fields in ([], [("Host", str(HOST)), ("host", str(HOST))]):
        assert (
            reason_of(judge_request(RequestHead("GET", "/", (1, 1), fields), ALLOWLIST)) is Reason.BAD_REQUEST
        )


def test_an_allowlist_path_is_sent_as_it_is() -> None:
    target = "//a/../%2e%2E/b%2Fc;d\\e?x=%00&y=//&z=?"
    verdict = judge_request(head(target=target), ALLOWLIST)
    assert isinstance(verdict, Forward)
    assert f"{verdict.path}?{verdict.query}" == target


def test_a_websocket_goes_where_upgrades_are_allowed() -> None:
    verdict = judge_request(
        head(UPGRADES, Connection="keep-alive, Upgrade", Upgrade="WebSocket", Sec_WebSocket_Key="k"), UPGRADES
    )
    assert isinstance(verdict, Forward)
    assert verdict.upgrade
    assert verdict.fields == [
        ("Host", "git.example.com"),
        ("Sec-WebSocket-Key", "k"),
        ("Connection", "Upgrade"),
        ("Upgrade", "websocket"),
    ]


def test_an_expectation_is_answered_by_the_proxy_and_not_sent_on() -> None:
    verdict = judge_request(head(method="PUT", Expect="100-Continue", Content_Length="3"), ALLOWLIST)
    assert isinstance(verdict, Forward)
    assert verdict.expects_continue
    assert verdict.fields == [("Host", "git.example.com"), ("Content-Length", "3")]


def test_nothing_that_is_judged_shows_the_credential_when_printed() -> None:
    verdict = judge_request(head(KUBERNETES, Authorization="Bearer stolen"), KUBERNETES)
    shown = repr(verdict) + repr(KUBERNETES) + repr(head(Authorization="Bearer stolen"))
    assert "real-token" not in shown
    assert "stolen" not in shown


@pytest.mark.parametrize(
    ("endpoint", "field"),
    [
        (HOST, "git.example.com"),
        (API, "api.example.com:6443"),
        (Endpoint("2001:db8::1", 443), "[2001:db8::1]"),
        (Endpoint("2001:db8::443", 8443), "[2001:db8::443]:8443"),
    ],
)
def test_the_default_port_is_left_out_of_host(endpoint: Endpoint, field: str) -> None:
    assert host_field(endpoint) == field
