"""`cli-mcp sessions`: lists the caller's sessions of a running server, and ends one."""

import json
import urllib.parse

from cli_mcp.client.connection import ClientError, Connection
from cli_mcp.client.options import DEFAULT_SESSION, WrongUse, only_url, parse, parser, target
from cli_mcp.client.output import say
from cli_mcp.exit_status import INTERRUPTED, NO_RESULT, OK


def main(arguments: list[str]) -> int:
    options = parser("sessions", "List your sessions of a running server, or end one.", "[URL]")
    options.add_argument("--end", metavar="ID", help="end this session and whatever runs in it")
    options.add_argument("--workspace", action="store_true", help="with --end: delete its files, too")
    chosen = parse(options, arguments)
    try:
        url = only_url(chosen.words)
    except WrongUse as wrong:
        options.error(str(wrong))
    if chosen.workspace and chosen.end is None:
        options.error("--workspace goes with --end ID")
    try:
        connection = Connection(target(chosen, url, DEFAULT_SESSION if chosen.end is None else chosen.end))
        if chosen.end is None:
            return _list(connection)
        workspace = "?workspace=true" if chosen.workspace else ""
        connection.request("DELETE", f"/sessions/{urllib.parse.quote(chosen.end, safe='')}{workspace}")
    except ClientError as error:
        say(str(error))
        return NO_RESULT
    except KeyboardInterrupt:
        return INTERRUPTED
    return OK


def _list(connection: Connection) -> int:
    """Raises ClientError."""
    answer = connection.request("GET", "/sessions")
    try:
        sessions = [(str(entry["id"]), entry["idle_seconds"]) for entry in json.loads(answer)["sessions"]]
    except (ValueError, KeyError, TypeError):
        raise ClientError("The server's answer is of another kind than this client knows.") from None
    width = max((len(name) for name, _ in sessions), default=0)
    for name, idle_seconds in sessions:
        how = "running" if idle_seconds is None else f"idle for {idle_seconds:.0f} s"
        print(f"{name:<{width}}  {how}")
    return OK
