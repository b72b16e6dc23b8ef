from mcp_server.backend import OpenSession
from tests.mcp_server.fake_backend import running_server


async def test_the_callers_sessions_are_listed_by_name_and_nobody_elses() -> None:
    async with running_server() as server, server.http() as http:
        server.backend.sessions = [
            ("local", OpenSession("b", 1.5)),
            ("another", OpenSession("hidden", 0.0)),
            ("local", OpenSession("a", None)),
        ]
        answer = await http.get("/sessions")
        assert answer.json() == {
            "sessions": [{"id": "a", "idle_seconds": None}, {"id": "b", "idle_seconds": 1.5}]
        }


async def test_without_a_token_nothing_is_listed() -> None:
    async with running_server() as server, server.http({"Authorization": "Bearer wrong"}) as http:
        assert (await http.get("/sessions")).status_code == 401
