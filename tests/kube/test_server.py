"""What only the server in memory has: tokens, TLS, and clients on other threads."""

from __future__ import annotations

import asyncio
import json
import ssl
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import ClientSession
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.kube.api import Api
from tests.kube.rbac import ADMIN, User, service_account
from tests.kube.server import Server

if TYPE_CHECKING:
    from pathlib import Path

PODS = "/api/v1/namespaces/default/pods"
NAMESPACES = "/api/v1/namespaces"
TOKENS = {"admin": ADMIN, "alice": User("alice", "u-1"), "robot": service_account("default", "robot")}


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def call(server: Server, method: str, path: str, token: str = "", body: Any = None) -> tuple[int, Any]:
    headers = bearer(token) if token else {}
    async with (
        ClientSession() as session,
        session.request(method, server.url + path, json=body, headers=headers) as answer,
    ):
        return answer.status, await answer.json()


@pytest.mark.parametrize("token", ["", "wrong"])
async def test_without_a_known_token_everything_is_401(token: str) -> None:
    async with Server(tokens=TOKENS).running() as server:
        for path in (PODS, "/api", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"):
            code, status = await call(server, "GET", path, token)
            assert (code, status["reason"]) == (401, "Unauthorized")


async def test_a_token_is_its_user() -> None:
    async with Server(tokens=TOKENS).running() as server:
        path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
        code, review = await call(server, "POST", path, "alice", {})
        assert code == 201
        assert review["status"]["userInfo"] == {
            "username": "alice",
            "uid": "u-1",
            "groups": ["system:authenticated"],
        }
        assert (await call(server, "GET", PODS, "alice"))[0] == 403
        assert (await call(server, "GET", PODS, "admin"))[0] == 200


async def test_a_right_to_one_object_is_one_to_list_and_watch_it_alone() -> None:
    api = Api()
    subject = {"kind": "User", "name": "alice"}
    rule = {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["mine"]}
    metadata = {"name": "one", "namespace": "default"}
    head = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": metadata}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "one"}
    api.create({**head, "kind": "Role", "rules": [{**rule, "verbs": ["list", "watch"]}]})
    api.create({**head, "kind": "RoleBinding", "roleRef": reference, "subjects": [subject]})
    async with Server(api, TOKENS).running() as server:
        for query, code in (
            ("", 403),
            ("?fieldSelector=metadata.name%3Dmine", 200),
            ("?fieldSelector=metadata.name%3Dother", 403),
            ("?fieldSelector=metadata.name!%3Dmine", 403),
        ):
            path = f"/api/v1/namespaces/default/configmaps{query}"
            assert (await call(server, "GET", path, "alice"))[0] == code
            watch = f"{path}{'&' if query else '?'}watch=true&timeoutSeconds=0"
            async with (
                ClientSession() as session,
                session.get(server.url + watch, headers=bearer("alice")) as answer,
            ):
                assert answer.status == code


async def test_a_token_review_is_for_those_who_may_create_one() -> None:
    async with Server(tokens=TOKENS).running() as server:
        path = "/apis/authentication.k8s.io/v1/tokenreviews"
        assert (await call(server, "POST", path, "alice", {"spec": {"token": "robot"}}))[0] == 403
        _, known = await call(server, "POST", path, "admin", {"spec": {"token": "robot", "audiences": ["x"]}})
        assert known["status"]["user"]["username"] == "system:serviceaccount:default:robot"
        assert known["status"]["audiences"] == ["x"]
        _, unknown = await call(server, "POST", path, "admin", {"spec": {"token": "no"}})
        assert unknown["status"]["authenticated"] is False


async def test_only_who_may_impersonates() -> None:
    async with Server(tokens=TOKENS).running() as server, ClientSession() as session:
        for token, code in (
            ("alice", 403),
            ("admin", 403),
        ):  # the second is answered as nobody, who may not list
            headers = {**bearer(token), "Impersonate-User": "nobody"}
            async with session.get(server.url + PODS, headers=headers) as answer:
                assert answer.status == code
                assert ("impersonate" in (await answer.json())["message"]) == (token == "alice")


async def test_a_watch_sees_what_another_thread_writes() -> None:
    api = Api()
    obj = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "namespace": "default"}}
    url = "/api/v1/namespaces/default/configmaps?watch=1&fieldSelector=metadata.name=c"
    async with (
        Server(api).running() as server,
        ClientSession() as session,
        session.get(server.url + url) as watch,
    ):
        await asyncio.get_running_loop().run_in_executor(None, api.create, obj)
        line = await asyncio.wait_for(watch.content.readline(), 10)
        assert json.loads(line)["type"] == "ADDED"


async def test_a_watch_ends_with_a_bookmark_when_one_is_wanted() -> None:
    url = f"{PODS}?watch=true&timeoutSeconds=1&allowWatchBookmarks=true"
    async with (
        Server().running() as server,
        ClientSession() as session,
        session.get(server.url + url) as watch,
    ):
        event = json.loads(await watch.text())
        assert event["type"] == "BOOKMARK"
        assert event["object"]["metadata"]["resourceVersion"] == str(server.api.storage.revision)


def server_certificate(folder: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """For 127.0.0.1: the server's context, and one of a client that trusts it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "kube")])
    address = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(address, critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "tls.pem").write_bytes(pem + private)
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(folder / "tls.pem")
    return serving, ssl.create_default_context(cadata=pem.decode())


async def test_a_watch_can_begin_with_a_list_that_ends_with_a_bookmark() -> None:
    url = f"{NAMESPACES}?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&timeoutSeconds=1"
    async with (
        Server().running() as server,
        ClientSession() as session,
        session.get(server.url + url) as watch,
    ):
        events = [json.loads(line) for line in (await watch.text()).splitlines()]
    assert [event["type"] for event in events] == ["ADDED", "ADDED", "BOOKMARK"]
    assert events[-1]["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}


@pytest.mark.parametrize("query", ["resourceVersion=x", "timeoutSeconds=x", "labelSelector=%3D"])
async def test_a_watch_with_bad_options_is_400(query: str) -> None:
    async with Server().running() as server:
        assert (await call(server, "GET", f"{PODS}?watch=true&{query}"))[0] == 400


async def test_a_body_in_protobuf_is_415() -> None:
    headers = {"Content-Type": "application/vnd.kubernetes.protobuf"}
    async with (
        Server().running() as server,
        ClientSession() as session,
        session.post(server.url + PODS, data=b"k8s\x00", headers=headers) as answer,
    ):
        assert answer.status == 415


async def test_tls(tmp_path: Path) -> None:
    serving, trusting = server_certificate(tmp_path)
    async with Server().running(serving) as server, ClientSession() as session:
        assert server.url.startswith("https://")
        async with session.get(f"{server.url}/version", ssl=trusting) as answer:
            assert (await answer.json())["major"] == "1"


async def test_discovery_lists_kinds_subresources_and_reviews() -> None:
    async with Server().running() as server:
        _, core = await call(server, "GET", "/api/v1")
        assert {"pods", "pods/status", "secrets"} <= {it["name"] for it in core["resources"]}
        _, groups = await call(server, "GET", "/apis")
        assert {"apps", "authorization.k8s.io"} <= {it["name"] for it in groups["groups"]}
        _, reviews = await call(server, "GET", "/apis/authorization.k8s.io/v1")
        assert "selfsubjectaccessreviews" in {it["name"] for it in reviews["resources"]}
        assert (await call(server, "GET", "/apis/no.such.group"))[0] == 404
