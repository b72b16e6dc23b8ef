"""`GET /sessions`: the caller's sessions. `DELETE /sessions/{id}`: ends one of them."""

from dataclasses import asdict

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from cli_mcp.execution import ExecutionError, NotSessionOwner
from mcp_server.backend import SandboxBackend, SessionKey
from mcp_server.guards import caller_of
from mcp_server.tool import InvalidCall, check_session_id

_BOOLEANS = {"true": True, "false": False}


def session_routes(backend: SandboxBackend) -> list[Route]:
    """DELETE is 204 whether or not the session was known; `?workspace=true` deletes its files too."""

    async def list_sessions(request: Request) -> Response:
        sessions = sorted(backend.open_sessions(caller_of(request).owner), key=lambda session: session.id)
        return JSONResponse({"sessions": [asdict(session) for session in sessions]})

    async def end_session(request: Request) -> Response:
        delete_workspace = _BOOLEANS.get(request.query_params.get("workspace", "false"))
        if delete_workspace is None:
            return _error(400, "`workspace` is true (delete the session's files, too) or false.")
        try:
            session = SessionKey(caller_of(request).owner, check_session_id(request.path_params["id"]))
            await backend.end(session, delete_workspace=delete_workspace)
        except InvalidCall as error:
            return _error(400, str(error))
        except NotSessionOwner as error:
            return _error(403, str(error))
        except ExecutionError as error:
            return _error(503, str(error))
        return Response(status_code=204)

    return [
        Route("/sessions", list_sessions, methods=["GET"]),
        Route("/sessions/{id}", end_session, methods=["DELETE"]),
    ]


def _error(status: int, message: str) -> Response:
    return JSONResponse({"error": message}, status)
