"""Reviews against the API server in memory; tests/e2e/test_callers.py asks a real one."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from lightkube.config.kubeconfig import KubeConfig
from lightkube.config.models import Cluster, User

from mcp_server.authentication import (
    Action,
    AuthenticationError,
    AuthenticationUnavailable,
    Forbidden,
    Unauthenticated,
)
from mcp_server.cluster.kubernetes import KubernetesApi
from mcp_server.reviews import Reviewer, SelfReviews, TokenReviews, caller_of
from tests.kube import rbac
from tests.kube.api import Api
from tests.kube.rbac import ADMIN, service_account
from tests.kube.server import Server
from tests.mcp_server.whole import delegator

NAMESPACE, INSTANCE = "team", "demo"
SERVER = service_account(NAMESPACE, "cli-mcp-demo", "uid-of-the-server")
TOKENS = {
    "full": service_account(NAMESPACE, "full", "u-1"),
    "reader": rbac.User("reader", groups=("system:authenticated", "readers")),
    "stranger": service_account("elsewhere", "full", "u-2"),
    "admin": ADMIN,
    "server": SERVER,
}
OWNERS = {
    "full": '["system:serviceaccount:team:full","u-1"]',
    "reader": '["reader",""]',
    "admin": '["kubernetes-admin",""]',
}
MAY = {
    "full": {Action.CALL, Action.END_SESSION, Action.READ_METRICS},
    "reader": {Action.READ_METRICS},
    "stranger": set(),
    "admin": {Action.CALL, Action.END_SESSION, Action.READ_METRICS},
    "server": set(),
}


def role(name: str, verbs: list[str], subject: dict[str, str]) -> list[dict[str, Any]]:
    metadata = {"name": name, "namespace": NAMESPACE}
    rule = {
        "apiGroups": ["cli-mcp.redhat.com"],
        "resources": ["climcpinstances/mcp"],
        "resourceNames": [INSTANCE],
        "verbs": verbs,
    }
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
    head = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": metadata}
    return [
        {**head, "kind": "Role", "rules": [rule]},
        {**head, "kind": "RoleBinding", "roleRef": reference, "subjects": [subject]},
    ]


@asynccontextmanager
async def api_server(*, delegates: bool = True) -> AsyncIterator[Server]:
    api = Api()
    api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    account = {"kind": "ServiceAccount", "name": "full", "namespace": NAMESPACE}
    objects = role("full", ["get", "create", "delete"], account)
    objects += role("reader", ["get"], {"kind": "Group", "name": "readers"})
    if delegates:
        objects += delegator({"kind": "ServiceAccount", "name": "cli-mcp-demo", "namespace": NAMESPACE})
    for it in objects:
        api.create(it)
    async with Server(api, TOKENS).running() as server:
        yield server


@asynccontextmanager
async def reviewer_of(kind: type[Reviewer], url: str, instance: str = INSTANCE) -> AsyncIterator[Reviewer]:
    user = User(token="server") if kind is TokenReviews else None
    found = KubeConfig.from_one(cluster=Cluster(server=url), user=user).get()
    async with KubernetesApi.connected(found) as api:
        yield kind(api, NAMESPACE, instance)  # type: ignore[call-arg]


@asynccontextmanager
async def answering(status: int, body: Any) -> AsyncIterator[str]:
    """An API server with one answer to everything."""

    async def answer(request: web.Request) -> web.Response:
        return web.json_response(body, status=status)

    app = web.Application()
    app.router.add_post("/{path:.*}", answer)
    async with TestServer(app) as server:
        yield str(server.make_url("")).rstrip("/")


BOTH = pytest.mark.parametrize("kind", [SelfReviews, TokenReviews])


@BOTH
@pytest.mark.parametrize("token", MAY)
async def test_a_caller_may_do_what_their_role_says(kind: type[Reviewer], token: str) -> None:
    async with api_server() as server, reviewer_of(kind, server.url) as reviewer:
        for action in Action:
            if action in MAY[token]:
                assert (await reviewer.review(token, action)).owner == OWNERS[token]
                continue
            with pytest.raises(Forbidden, match="cli-mcp-demo-client"):
                await reviewer.review(token, action)


@BOTH
async def test_a_role_for_one_instance_is_none_for_another(kind: type[Reviewer]) -> None:
    async with api_server() as server, reviewer_of(kind, server.url, "other") as reviewer:
        with pytest.raises(Forbidden):
            await reviewer.review("full", Action.CALL)


@BOTH
async def test_an_unknown_token_is_nobodys(kind: type[Reviewer]) -> None:
    async with api_server() as server, reviewer_of(kind, server.url) as reviewer:
        with pytest.raises(Unauthenticated) as caught:
            await reviewer.review("guess", Action.CALL)
        assert "guess" not in str(caught.value)


async def test_a_server_that_may_not_review_tokens_says_who_has_to_do_what(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with api_server(delegates=False) as server, reviewer_of(TokenReviews, server.url) as reviewer:
        with pytest.raises(AuthenticationUnavailable, match="administrator"):
            await reviewer.review("full", Action.CALL)
    assert "system:auth-delegator" in caplog.text
    assert "full" not in caplog.text


@BOTH
async def test_without_an_api_server_nobody_is_let_in(
    kind: type[Reviewer], caplog: pytest.LogCaptureFixture
) -> None:
    async with api_server() as server, reviewer_of(kind, server.url) as reviewer:
        assert await reviewer.review("full", Action.CALL)
        url = server.url
    async with reviewer_of(kind, url) as reviewer:
        with pytest.raises(AuthenticationUnavailable, match="does not answer"):
            await reviewer.review("full", Action.CALL)
    assert "full" not in caplog.text


ANSWERS: list[tuple[int, Any, type[AuthenticationError]]] = [
    (201, {"status": {"userInfo": {}}}, Unauthenticated),
    (201, {"status": {"userInfo": {"username": "system:anonymous"}}}, Unauthenticated),
    (201, {"status": {"userInfo": {"username": ["x"]}}}, Unauthenticated),
    (201, {"status": None}, Unauthenticated),
    (201, [], AuthenticationUnavailable),
    (201, "text", AuthenticationUnavailable),
    (401, {}, Unauthenticated),
    (403, {}, Forbidden),
    (404, {}, AuthenticationUnavailable),
    (429, {}, AuthenticationUnavailable),
    (500, {}, AuthenticationUnavailable),
    (302, {}, Unauthenticated),
]


@pytest.mark.parametrize(("status", "body", "error"), ANSWERS)
async def test_an_answer_that_names_nobody_lets_nobody_in(
    status: int, body: Any, error: type[AuthenticationError]
) -> None:
    async with answering(status, body) as url, reviewer_of(SelfReviews, url) as reviewer:
        with pytest.raises(error):
            await reviewer.review("full", Action.CALL)


@pytest.mark.parametrize(
    "status",
    [
        {},
        {"authenticated": False},
        {"authenticated": "true"},
        {"authenticated": True, "user": {"username": "x"}},
        {"authenticated": True, "user": {"username": "x"}, "audiences": []},
        {"authenticated": True, "user": {"username": "x"}, "audiences": ["https://kubernetes.default.svc"]},
        {"authenticated": True, "audiences": ["cli-mcp.redhat.com/team/demo"]},
    ],
)
async def test_a_token_that_was_not_made_for_this_server_is_refused(status: dict[str, Any]) -> None:
    async with answering(201, {"status": status}) as url, reviewer_of(TokenReviews, url) as reviewer:
        with pytest.raises(Unauthenticated):
            await reviewer.review("full", Action.CALL)


async def test_a_denial_outweighs_what_is_allowed() -> None:
    user = {"status": {"userInfo": {"username": "x"}, "allowed": True, "denied": True}}
    async with answering(201, user) as url, reviewer_of(SelfReviews, url) as reviewer:
        with pytest.raises(Forbidden):
            await reviewer.review("full", Action.CALL)


def test_two_users_never_have_the_same_owner() -> None:
    users = [("a", "b"), ("a,b", ""), ('a","b', ""), ("a", ""), ("", "a"), ('["a","b"]', "")]
    owners = {caller_of({"username": name, "uid": uid}).owner for name, uid in users if name}
    assert len(owners) == len(users) - 1
    assert not any(owner.startswith(("ssh:", "local")) for owner in owners)
