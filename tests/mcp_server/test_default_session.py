"""Clients that cannot send headers of their own, as hosted connectors: a session for each caller."""

import asyncio

import pytest
from mcp import Client
from mcp.client.client import ConnectMode
from mcp.client.streamable_http import streamable_http_client

from mcp_server.authentication import Action, Caller, Unauthenticated
from mcp_server.tool import default_session_id
from tests.mcp_server.fake_backend import RunningServer, running_server

ERAS: tuple[ConnectMode, ...] = ("legacy", "2026-07-28")


class TokenIsOwner:
    async def authenticate(self, token: str | None, action: Action, client: str) -> Caller:
        if token is None:
            raise Unauthenticated("no token")
        return Caller(token)


async def call(server: RunningServer, owner: str, mode: ConnectMode, session: str | None = None) -> str:
    headers = {"Authorization": f"Bearer {owner}"} | ({"X-Session-ID": session} if session else {})
    http = server.http(headers)
    if session is None:
        del http.headers["X-Session-ID"]
    async with http, Client(streamable_http_client(server.url, http_client=http), mode=mode) as client:
        result = await client.call_tool("bash", {"command": "x"})
        return "".join(getattr(block, "text", "") for block in result.content)


@pytest.mark.parametrize("mode", ERAS)
async def test_callers_without_the_header_come_back_to_their_session_and_never_meet(
    mode: ConnectMode,
) -> None:
    async with running_server(authenticator=TokenIsOwner()) as server:
        callers = ["alice", "bob", "alice", "carol", "bob"]
        await asyncio.gather(*(call(server, owner, mode) for owner in callers))
        seen = {(key.owner, key.id) for key, _, _ in server.backend.calls}
        assert seen == {(owner, default_session_id(owner)) for owner in callers}


@pytest.mark.parametrize("mode", ERAS)
async def test_another_callers_default_session_cannot_be_named(mode: ConnectMode) -> None:
    async with running_server(authenticator=TokenIsOwner()) as server:
        assert "another caller's" in await call(server, "mallory", mode, default_session_id("alice"))
        assert server.backend.calls == []


@pytest.mark.parametrize("mode", ERAS)
async def test_an_instance_can_ask_for_names(mode: ConnectMode) -> None:
    async with running_server(authenticator=TokenIsOwner(), default_session=False) as server:
        assert "No session" in await call(server, "alice", mode)
        await call(server, "alice", mode, "s1")
        assert [key.id for key, _, _ in server.backend.calls] == ["s1"]
