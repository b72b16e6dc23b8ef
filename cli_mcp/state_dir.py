"""Where servers on this machine keep their state, and how a client finds the token of one."""

import os
from collections.abc import Mapping
from pathlib import Path

TOKEN_FILE = "token"  # noqa: S105 - a name, not a token
_SYSTEM_DIRECTORY = Path("/var/lib/cli-mcp")


def state_directory(uid: int, environment: Mapping[str, str]) -> Path:
    """The directory above the instances' own ones: the system's for root, otherwise the user's.

    An XDG_STATE_HOME that is not absolute is ignored, as the XDG Base Directory Specification asks.
    """
    if uid == 0:
        return _SYSTEM_DIRECTORY
    given = Path(environment.get("XDG_STATE_HOME", ""))
    base = (
        given if given.is_absolute() else Path(environment.get("HOME") or "~").expanduser() / ".local/state"
    )
    return base / "cli-mcp"


def own_state_directory() -> Path:
    """The state directory of this process's user."""
    return state_directory(os.geteuid(), os.environ)


def newest_token_file(directory: Path) -> Path | None:
    """The token file of the instance below `directory` that was started last; None when there is none."""
    found = [(file.stat().st_mtime_ns, file) for file in directory.glob(f"*/{TOKEN_FILE}") if file.is_file()]
    return max(found)[1] if found else None
