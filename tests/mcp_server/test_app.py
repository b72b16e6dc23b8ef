import pytest

from mcp_server.backend import Readiness, SessionKey
from tests.mcp_server.fake_backend import FakeBackend, RunningServer, running_server

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_health_tells_whether_sessions_can_be_served_and_why_not() -> None:
    async with running_server() as server, server.http() as http:
        answer = await http.get("/health")
        assert (answer.status_code, answer.json()) == (200, {"ready": True, "detail": "ok"})
        server.backend.ready = Readiness(False, "no bubblewrap")
        answer = await http.get("/health")
        assert (answer.status_code, answer.json()) == (503, {"ready": False, "detail": "no bubblewrap"})
        assert (await http.get("/live")).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("POST", "/sse", 404),
        ("GET", "/mcp/x", 404),
        ("POST", "/sessions", 405),
        ("GET", "/sessions/s1", 405),
        ("POST", "/health", 405),
    ],
)
async def test_a_wrong_path_or_method_is_answered_readably(
    server: RunningServer, method: str, path: str, status: int
) -> None:
    async with server.http() as http:
        answer = await http.request(method, path)
        assert answer.status_code == status
        assert isinstance(answer.json()["error"], str)


async def test_the_wrong_path_of_an_mcp_client_is_told_the_right_one(server: RunningServer) -> None:
    async with server.http() as http:
        assert "/mcp" in (await http.post("/")).json()["error"]


@pytest.mark.parametrize(
    ("path", "delete_workspace"),
    [
        ("/sessions/s1", False),
        ("/sessions/s1?workspace=true", True),
        ("/sessions/s1?workspace=false", False),
    ],
)
async def test_delete_ends_the_callers_session(
    server: RunningServer, path: str, delete_workspace: bool
) -> None:
    async with server.http() as http:
        answer = await http.delete(path)
        assert (answer.status_code, answer.content) == (204, b"")
        assert server.backend.ended == [(SessionKey("local", "s1"), delete_workspace)]


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("/sessions/Not-Valid", 400, "lower-case"),
        ("/sessions/ssh-x", 400, "ssh-"),
        ("/sessions/a%2Fb", 404, "nothing here"),
        ("/sessions/a%00b", 400, "lower-case"),
        ("/sessions/%ff", 400, "lower-case"),
        ("/sessions/s1?workspace=yes", 400, "`workspace`"),
        ("/sessions/of-another", 403, "another caller"),
    ],
)
async def test_a_delete_that_cannot_be_done_says_why(
    server: RunningServer, path: str, status: int, words: str
) -> None:
    async with server.http() as http:
        answer = await http.delete(path)
        assert answer.status_code == status
        assert words in answer.json()["error"]
        assert server.backend.ended == []


async def test_a_failure_of_ours_outside_of_the_tool_shows_an_id_only() -> None:
    backend = FakeBackend(error=RuntimeError("/root/secret.py"))
    async with running_server(backend) as server, server.http() as http:
        answer = await http.delete("/sessions/s1")
        assert answer.status_code == 500
        assert answer.json()["error"].startswith("internal error, id ")
        assert "secret" not in answer.text
        assert (await http.get("/live")).status_code == 200


async def test_metrics_count_refusals_and_show_the_state() -> None:
    async with running_server() as server, server.http() as http:
        await http.get("/metrics", headers={"Origin": "https://other.example"})
        await http.get("/metrics", headers={"Authorization": "Bearer no"})
        answer = await http.get("/metrics")
        assert answer.headers["content-type"].startswith("text/plain")
        for line in (
            'cli_mcp_refused_requests_total{reason="origin"} 1.0',
            'cli_mcp_refused_requests_total{reason="unauthenticated"} 1.0',
            "cli_mcp_sessions 3.0",
            "cli_mcp_warm_sandboxes 2.0",
            "cli_mcp_running_calls 0.0",
        ):
            assert line in answer.text


async def test_nothing_that_a_client_chooses_becomes_a_label(server: RunningServer) -> None:
    async with server.http() as http:
        for n in range(20):
            await http.get(f"/nothing-{n}", headers={"Host": f"host-{n}", "X-Session-ID": f"session-{n}"})
        exposed = (await http.get("/metrics")).text
        assert "nothing-" not in exposed
        assert "host-" not in exposed
        assert "session-" not in exposed


async def test_answers_do_not_name_the_software(server: RunningServer) -> None:
    async with server.http() as http:
        assert "server" not in (await http.get("/live")).headers
