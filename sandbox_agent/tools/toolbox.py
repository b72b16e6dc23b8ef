"""All typed tools of one sandbox, called by name with the JSON object of their arguments."""

import asyncio
import errno
import inspect
import os
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from cli_mcp.execution import ToolFailed
from sandbox_agent.tools import files
from sandbox_agent.tools.process_table import ProcessTable
from sandbox_agent.tools.root import Root

DEFAULT_ROOT = "/workspace"

Handler = Callable[..., Awaitable[dict[str, Any]]]


class InvalidArguments(ToolFailed):
    """There is no such tool, or it does not take these arguments: the caller is of another version."""


class Toolbox:
    """In use until `close`, from one event loop; any number of calls at the same time.

    `environment` is that of the processes that are started.
    """

    def __init__(self, root: Path, environment: Mapping[str, str]) -> None:
        self._root = Root(root)
        self._processes = ProcessTable(self._root, environment)
        table = self._processes
        self._handlers: dict[str, Handler] = {
            **{name: self._in_thread(function) for name, function in _FILE_TOOLS.items()},
            "process_start": table.start,
            "process_list": _awaitable(table.list),
            "process_kill": table.kill,
            "tail_log": table.tail,
        }

    async def call(self, name: str, arguments: Mapping[str, object]) -> dict[str, Any]:
        """The tool's result. Raises ToolFailed, with a message for the caller, and nothing else."""
        handler = self._handlers.get(name)
        if handler is None:
            raise InvalidArguments(f"The sandbox has no tool {name[:40]!r}; it may be of another version.")
        _check(handler, arguments)
        try:
            return await handler(**arguments)
        except OSError as error:
            raise ToolFailed(explain(error, str(self._root.path))) from None
        except (OverflowError, ValueError) as error:  # as of a server that checks less
            raise InvalidArguments(f"The system does not take one of the arguments: {error}.") from None

    async def close(self) -> None:
        """End the processes that were started."""
        await self._processes.close()
        self._root.close()

    def _in_thread(self, function: Callable[..., dict[str, Any]]) -> Handler:
        bound = partial(function, self._root)

        async def call(**arguments: object) -> dict[str, Any]:
            return await asyncio.to_thread(bound, **arguments)

        call.__signature__ = inspect.signature(bound)  # type: ignore[attr-defined]
        return call


_FILE_TOOLS: Mapping[str, Callable[..., dict[str, Any]]] = {
    "read_file": files.read_file,
    "write_file": files.write_file,
    "list_directory": files.list_directory,
    "move_file": files.move_file,
    "delete_file": files.delete_file,
}


def _awaitable(function: Callable[[], dict[str, Any]]) -> Handler:
    async def call() -> dict[str, Any]:
        return function()

    return call


def _check(handler: Handler, arguments: Mapping[str, object]) -> None:
    """Raises InvalidArguments unless names and types are those of the handler's parameters."""
    try:
        bound = inspect.signature(handler).bind(**arguments)
    except TypeError as error:
        raise InvalidArguments(f"The sandbox does not know these arguments: {error}.") from None
    for name, value in bound.arguments.items():
        wanted = bound.signature.parameters[name].annotation
        if wanted is float:
            wanted = float | int
        if not isinstance(value, wanted):
            raise InvalidArguments(f"`{name}` has a type that the sandbox does not expect.")


# What to say for an error of the system; {root} is the tools' directory.
_REASONS: Mapping[int, str] = {
    errno.ENOENT: "There is no such file or directory. list_directory shows what there is.",
    errno.ENOTDIR: "Something on the way is not a directory.",
    errno.EISDIR: "It is a directory.",
    errno.EEXIST: "Something has that name already and was not replaced. Delete it first, or use another.",
    errno.ENOTEMPTY: "The directory is not empty.",
    errno.EXDEV: "The path leads out of {root} (by `..`, an absolute symbolic link or a mount), which is not "
    "allowed. Use a path that stays below it.",
    errno.ELOOP: "The path has too many symbolic links.",
    errno.EACCES: "Permission denied.",
    errno.EPERM: "The operation is not permitted.",
    errno.EROFS: "The file system is read-only.",
    errno.ENOSPC: "The disk is full. Delete something first.",
    errno.EDQUOT: "The disk quota is used up. Delete something first.",
    errno.EFBIG: "The workspace is full, or the file would be too large. Delete something first.",
    errno.ENAMETOOLONG: "The path is too long.",
    errno.EINVAL: "The system refuses this, such as a directory that is to be moved into itself.",
    errno.ETXTBSY: "The file is a program that runs. Write it with `atomic`: true.",
    errno.EMFILE: "Too many files are open. Wait for other calls to end, or kill processes.",
}


def explain(error: OSError, root: str) -> str:
    """Cause and remedy of a system's error."""
    number = error.errno or 0
    reason = _REASONS.get(number)
    return reason.format(root=root) if reason else f"The system says: {os.strerror(number)}."
