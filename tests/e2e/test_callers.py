"""Callers of the MCP server before a real API server: who is let in, and for how long."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import os
import time
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import jwt
import pytest
import yaml
from lightkube.config.kubeconfig import KubeConfig, SingleConfig
from lightkube.config.models import User

from mcp_server.authentication import (
    Action,
    AuthenticationError,
    AuthenticationUnavailable,
    Forbidden,
    Unauthenticated,
)
from mcp_server.cluster.kubernetes import KubernetesApi
from mcp_server.review_cache import ReviewAuthenticator
from mcp_server.reviews import SelfReviews, TokenReviews
from tests.e2e.operator import apply, eventually, get, kubectl
from tests.e2e.tokens import expired, signed_like_the_cluster

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

pytestmark = pytest.mark.skipif("KUBECONFIG" not in os.environ, reason="not set: KUBECONFIG")

GROUP = "cli-mcp.redhat.com"
RBAC = "rbac.authorization.k8s.io"
# 10 s of our cache, 10 s of the API server's own, and some for a busy machine.
REVOKED_SECONDS = 25
_numbers = itertools.count(1)


def account(namespace: str, name: str) -> dict[str, object]:
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata}


def client(namespace: str, name: str, verbs: list[str]) -> list[dict[str, object]]:
    """What the hooks make for clients of the instance `demo`, bound to a ServiceAccount."""
    metadata = {"name": name, "namespace": namespace}
    rule = {"apiGroups": [GROUP], "resources": ["climcpinstances/mcp"], "resourceNames": ["demo"]}
    return [
        account(namespace, name),
        {
            "apiVersion": f"{RBAC}/v1",
            "kind": "Role",
            "metadata": metadata,
            "rules": [{**rule, "verbs": verbs}],
        },
        {
            "apiVersion": f"{RBAC}/v1",
            "kind": "RoleBinding",
            "metadata": metadata,
            "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
        },
    ]


@contextmanager
def new_namespace() -> Iterator[str]:
    """With ServiceAccounts: full (every verb), reader (get), stranger (none), server (may review tokens)."""
    name = f"callers-{os.getpid()}-{next(_numbers)}"
    kubectl("create", "namespace", name)
    try:
        eventually(lambda: get(name, "serviceaccount", "default"))
        binding = {
            "apiVersion": f"{RBAC}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": name},
            "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": "system:auth-delegator"},
            "subjects": [{"kind": "ServiceAccount", "name": "server", "namespace": name}],
        }
        apply(
            *client(name, "full", ["get", "create", "delete"]),
            *client(name, "reader", ["get"]),
            account(name, "stranger"),
            account(name, "server"),
            binding,
        )
        yield name
    finally:
        kubectl("delete", "clusterrolebinding", name, "--ignore-not-found")
        kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture(scope="module")
def namespace() -> Iterator[str]:
    with new_namespace() as name:
        yield name


def token_of(namespace: str, service_account: str, *arguments: str) -> str:
    return kubectl("-n", namespace, "create", "token", service_account, *arguments).strip()


def audience(namespace: str, instance: str = "demo") -> str:
    return f"--audience={GROUP}/{namespace}/{instance}"


@asynccontextmanager
async def self_reviews(namespace: str, instance: str = "demo") -> AsyncIterator[ReviewAuthenticator]:
    async with KubernetesApi.connected(config()._replace(user=None)) as api:
        yield ReviewAuthenticator(SelfReviews(api, namespace, instance))


@asynccontextmanager
async def token_reviews(namespace: str, reviewing: str = "server") -> AsyncIterator[ReviewAuthenticator]:
    user = User(token=token_of(namespace, reviewing))
    async with KubernetesApi.connected(config()._replace(user=user)) as api:
        yield ReviewAuthenticator(TokenReviews(api, namespace, "demo"))


def config() -> SingleConfig:
    found = KubeConfig.from_file(os.environ["KUBECONFIG"]).get()
    assert found is not None
    return found


async def result(
    authenticator: ReviewAuthenticator, token: str, action: Action = Action.CALL
) -> str | type[Exception]:
    """The caller's name, or what was raised."""
    try:
        caller = await authenticator.authenticate(token, action, "127.0.0.1")
    except AuthenticationError as error:
        assert token not in str(error)
        return type(error)
    name, uid = json.loads(caller.owner)
    assert uid
    return str(name)


async def test_a_caller_may_do_what_their_role_says(namespace: str) -> None:
    async with self_reviews(namespace) as authenticator:
        full, reader, stranger = (token_of(namespace, it) for it in ("full", "reader", "stranger"))
        for action in Action:
            assert await result(authenticator, full, action) == f"system:serviceaccount:{namespace}:full"
            may = action is Action.READ_METRICS
            assert (await result(authenticator, reader, action) is Forbidden) is not may
            assert await result(authenticator, stranger, action) is Forbidden


async def test_a_role_for_one_instance_is_none_for_another(namespace: str) -> None:
    async with self_reviews(namespace, "other") as authenticator:
        assert await result(authenticator, token_of(namespace, "full")) is Forbidden
    async with self_reviews("default") as authenticator:
        assert await result(authenticator, token_of(namespace, "full")) is Forbidden


async def test_an_expired_token_is_refused(namespace: str) -> None:
    token = token_of(namespace, "full")
    valid = signed_like_the_cluster(token, exp=int(time.time()) + 600)
    async with self_reviews(namespace) as authenticator:
        assert await result(authenticator, valid) == f"system:serviceaccount:{namespace}:full"
        assert await result(authenticator, expired(token)) is Unauthenticated


async def test_a_token_of_another_issuer_or_none_is_refused(namespace: str) -> None:
    token = token_of(namespace, "full")
    head, claims, signature = token.split(".")
    guesses = [
        "garbage",
        "a.b.c",
        f"{head}.{claims}.",
        f"{head}.{claims}.{signature[::-1]}",
        jwt.encode(jwt.decode(token, options={"verify_signature": False}), "k" * 32, algorithm="HS256"),
        base64.urlsafe_b64encode(b'{"alg":"none"}').decode().rstrip("=") + f".{claims}.",
        "A" * 16_384,
        "A" * 1_000_000,
        token + "\r\nImpersonate-User: admin",
        token_of(namespace, "full", audience(namespace)),
    ]
    async with self_reviews(namespace) as authenticator:
        for guess in guesses:
            assert await result(authenticator, guess) is Unauthenticated


@pytest.mark.parametrize("reviews", [self_reviews, token_reviews])
async def test_a_token_whose_account_is_deleted_is_refused_in_time(reviews: type) -> None:
    with new_namespace() as namespace:
        arguments = [audience(namespace)] if reviews is token_reviews else []
        token = token_of(namespace, "full", *arguments)
        async with reviews(namespace) as authenticator:
            assert await result(authenticator, token) == f"system:serviceaccount:{namespace}:full"
            kubectl("-n", namespace, "delete", "serviceaccount", "full")
            await refused_in_time(authenticator, token)


async def test_a_token_whose_pod_is_gone_is_refused_in_time(namespace: str) -> None:
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "bound", "namespace": namespace},
        "spec": {
            "serviceAccountName": "full",
            "schedulerName": "nobody",
            "containers": [{"name": "main", "image": "none"}],
        },
    }
    apply(pod)
    token = token_of(namespace, "full", "--bound-object-kind=Pod", "--bound-object-name=bound")
    async with self_reviews(namespace) as authenticator:
        assert await result(authenticator, token) == f"system:serviceaccount:{namespace}:full"
        kubectl("-n", namespace, "delete", "pod", "bound", "--grace-period=0", "--force")
        await refused_in_time(authenticator, token)


async def refused_in_time(authenticator: ReviewAuthenticator, token: str) -> None:
    started = datetime.now(UTC)
    while await result(authenticator, token) is not Unauthenticated:
        assert datetime.now(UTC) - started < timedelta(seconds=REVOKED_SECONDS)
        await asyncio.sleep(0.2)


async def test_a_right_that_is_taken_away_ends_with_the_cache() -> None:
    with new_namespace() as namespace:
        token = token_of(namespace, "full")
        async with self_reviews(namespace) as authenticator:
            assert await result(authenticator, token) == f"system:serviceaccount:{namespace}:full"
            kubectl("-n", namespace, "delete", "rolebinding", "full")
            deadline = time.monotonic() + REVOKED_SECONDS
            while await result(authenticator, token) is not Forbidden:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.2)


async def test_with_token_reviews_only_tokens_for_this_server_are_good(namespace: str) -> None:
    async with token_reviews(namespace) as authenticator:
        good = token_of(namespace, "full", audience(namespace))
        assert await result(authenticator, good) == f"system:serviceaccount:{namespace}:full"
        assert await result(authenticator, token_of(namespace, "reader", audience(namespace))) is Forbidden
        for arguments in ([], [audience(namespace, "other")], [audience("elsewhere")]):
            token = token_of(namespace, "full", *arguments)
            assert await result(authenticator, token) is Unauthenticated
        assert await result(authenticator, "garbage") is Unauthenticated


async def test_a_server_without_the_right_to_review_lets_nobody_in(namespace: str) -> None:
    async with token_reviews(namespace, "stranger") as authenticator:
        token = token_of(namespace, "full", audience(namespace))
        assert await result(authenticator, token) is AuthenticationUnavailable


async def test_the_certificate_of_the_servers_own_kubeconfig_is_not_sent_with_a_callers_token(
    namespace: str,
) -> None:
    """It would make every caller the administrator whom the kubeconfig belongs to."""
    document = yaml.safe_load(Path(os.environ["KUBECONFIG"]).read_text())
    if not any("client-certificate-data" in it["user"] for it in document["users"]):
        pytest.skip("KUBECONFIG has no client certificate")
    async with self_reviews(namespace) as authenticator:
        assert await result(authenticator, "garbage") is Unauthenticated
        assert await result(authenticator, token_of(namespace, "stranger")) is Forbidden
