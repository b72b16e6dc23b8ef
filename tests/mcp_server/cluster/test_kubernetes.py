"""Requests of the Kubernetes API over a real socket, with an API server that does what the test says."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
from aiohttp import ClientTimeout, web
from lightkube.config.kubeconfig import KubeConfig
from lightkube.config.models import Cluster, User
from lightkube.core.exceptions import ConfigError

from mcp_server.cluster import kubernetes
from mcp_server.cluster.kubernetes import KubernetesApi, Refused, Resource, TooOld, Unanswered
from tests.kube.server import COMPRESSED_FROM_BYTES, Server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

PODS = Resource.core("default", "pods")


@asynccontextmanager
async def api_server(handler: Handler, user: User | None = None) -> AsyncIterator[KubernetesApi]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    config = KubeConfig.from_one(cluster=Cluster(server=f"http://{host}:{port}"), user=user).get()
    try:
        async with KubernetesApi.connected(config) as api:
            yield api
    finally:
        await runner.cleanup()


def streamed(*chunks: bytes) -> Handler:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for chunk in chunks:
            await response.write(chunk)
            await asyncio.sleep(0)
        return response

    return answer


def event(kind: str, **fields: object) -> bytes:
    return json.dumps({"type": kind, "object": fields}).encode() + b"\n"


async def test_a_patch_is_a_merge_patch_of_the_named_object() -> None:
    seen: list[tuple[str, str, str, object]] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append(
            (request.method, request.path, request.content_type, await request.json(loads=json.loads))
        )
        return web.json_response({"metadata": {"name": "p"}})

    async with api_server(answer) as api:
        assert await api.patch(PODS, "p", {"metadata": {}}) == {"metadata": {"name": "p"}}
    path = "/api/v1/namespaces/default/pods/p"
    assert seen == [("PATCH", path, "application/merge-patch+json", {"metadata": {}})]


async def test_a_delete_names_the_uid_and_the_grace_period() -> None:
    bodies: list[object] = []

    async def answer(request: web.Request) -> web.Response:
        bodies.append(await request.json())
        return web.json_response({})

    async with api_server(answer) as api:
        await api.delete(PODS, "p", uid="u", grace_seconds=5)
    [body] = bodies
    assert isinstance(body, dict)
    assert (body["preconditions"], body["gracePeriodSeconds"]) == ({"uid": "u"}, 5)


@pytest.mark.parametrize(
    ("status", "body", "headers", "message", "transient", "retry_after"),
    [
        (409, '{"reason": "Conflict", "message": "modified"}', {}, "modified", False, None),
        (429, '{"message": "slow down"}', {"Retry-After": "3"}, "slow down", True, 3.0),
        (503, "<html>", {"Retry-After": "soon"}, "the Kubernetes API answered 503", True, None),
        (403, "[]", {}, "the Kubernetes API answered 403", False, None),
    ],
)
async def test_a_refusal_has_the_api_servers_words(
    status: int,
    body: str,
    headers: dict[str, str],
    message: str,
    transient: bool,
    retry_after: float | None,
) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=status, text=body, headers=headers)

    async with api_server(answer) as api:
        with pytest.raises(Refused) as refused:
            await api.list(PODS)
    assert str(refused.value) == message
    assert refused.value.code == status
    assert refused.value.transient is transient
    assert refused.value.retry_after_seconds == retry_after


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff"])
async def test_an_answer_that_is_no_object_is_none(body: bytes) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(body=body)

    async with api_server(answer) as api:
        with pytest.raises(Unanswered):
            await api.list(PODS)


async def test_a_long_list_is_read_from_a_server_that_compresses_what_it_may() -> None:
    server = Server()
    metadata = {"name": "long", "namespace": "default", "labels": {"long": "yes"}}
    server.api.create(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": metadata,
            "data": {"text": "x" * COMPRESSED_FROM_BYTES},
        }
    )
    async with (
        server.running(),
        KubernetesApi.connected(KubeConfig.from_server(server.url).get()) as api,
    ):
        listing = await api.list(Resource.core("default", "configmaps"), "long")
    assert [it["metadata"]["name"] for it in listing.items] == ["long"]


async def test_a_silent_server_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubernetes, "_ANSWER_TIMEOUT", ClientTimeout(total=0.2))
    monkeypatch.setattr(kubernetes, "CONNECT_SECONDS", 0.2)

    async def silence(request: web.Request) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError

    async with api_server(silence) as api:
        with pytest.raises(Unanswered, match="does not answer") as unanswered:
            await api.list(PODS)
        assert "127.0.0.1" not in str(unanswered.value)
        with pytest.raises(Unanswered):
            async for _ in api.watch(PODS, "1", seconds=0):
                pass


async def test_no_server_at_all_is_no_answer() -> None:
    config = KubeConfig.from_server("http://127.0.0.1:1").get()
    async with KubernetesApi.connected(config) as api:
        with pytest.raises(Unanswered) as unanswered:
            await api.list(PODS)
    assert "127.0.0.1" not in str(unanswered.value)


class TestWatch:
    async def test_events_come_one_by_one_however_they_were_cut_and_however_long(self) -> None:
        long = event("ADDED", metadata={"name": "x" * 1_500_000})
        stream = event("ADDED", metadata={"name": "a"}) + long + event("BOOKMARK", metadata={})
        pieces = [stream[:10], stream[10:70_000], stream[70_000:], b'{"type": "cut of']
        async with api_server(streamed(*pieces)) as api:
            seen = [it async for it in api.watch(PODS, "1", seconds=5)]
        assert [kind for kind, _ in seen] == ["", "ADDED", "ADDED", "BOOKMARK"]
        assert len(seen[2][1]["metadata"]["name"]) == 1_500_000

    async def test_a_forgotten_revision_is_told_apart_in_both_of_its_forms(self) -> None:
        async def gone(request: web.Request) -> web.Response:
            return web.json_response({"reason": "Expired", "message": "too old"}, status=410)

        for handler in (gone, streamed(event("ERROR", code=410, reason="Expired", message="too old"))):
            async with api_server(handler) as api:
                with pytest.raises(TooOld, match="too old"):
                    async for _ in api.watch(PODS, "1", seconds=5):
                        pass

    async def test_it_asks_for_bookmarks_and_for_an_end(self) -> None:
        queries: list[dict[str, str]] = []

        async def answer(request: web.Request) -> web.StreamResponse:
            queries.append(dict(request.query))
            return web.Response()

        async with api_server(answer) as api:
            async for _ in api.watch(PODS, "7", labels="a=b", fields="c=d", seconds=15):
                pass
        assert queries == [
            {
                "watch": "true",
                "resourceVersion": "7",
                "allowWatchBookmarks": "true",
                "timeoutSeconds": "15",
                "labelSelector": "a=b",
                "fieldSelector": "c=d",
            }
        ]


class TestCredentials:
    async def seen(self, user: User | None, change: Callable[[], None] = lambda: None) -> list[str | None]:
        headers: list[str | None] = []

        async def answer(request: web.Request) -> web.Response:
            headers.append(request.headers.get("Authorization"))
            return web.json_response({})

        async with api_server(answer, user) as api:
            await api.list(PODS)
            change()
            await api.list(PODS)
            await api.with_token("another").list(PODS)
        return headers

    async def test_a_token_is_sent_and_can_be_another_ones(self) -> None:
        assert await self.seen(User(token="t")) == ["Bearer t", "Bearer t", "Bearer another"]
        assert await self.seen(None) == [None, None, "Bearer another"]

    async def test_a_token_in_a_file_is_read_again(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(kubernetes, "_TOKEN_SECONDS", 0.0)
        file = tmp_path / "token"
        file.write_text("first\n")
        seen = await self.seen(
            User(token="first", token_file=str(file)), lambda: self._replace(file, "second")
        )
        assert seen == ["Bearer first", "Bearer second", "Bearer another"]

    async def test_a_token_that_cannot_be_read_for_a_moment_stays(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(kubernetes, "_TOKEN_SECONDS", 0.0)
        file = tmp_path / "token"
        file.write_text("first")
        seen = await self.seen(User(token_file=str(file)), file.unlink)
        assert seen == ["Bearer first", "Bearer first", "Bearer another"]

    async def test_users_that_take_a_program_are_refused(self) -> None:
        with pytest.raises(ConfigError, match="use a token"):
            await self.seen(User(auth_provider={"name": "gcp"}))

    def _replace(self, file: Path, text: str) -> None:
        file.write_text(text)
