"""The group `processes` but for shell_exec: process_start, process_list, process_kill, tail_log."""

from typing import Annotated, Literal, Self

from mcp import types
from pydantic import BeforeValidator, Field, model_validator

from mcp_server.file_tools import Content, Encoding, Path, PathShown, with_notes
from mcp_server.typed_tool import Count, Positive, ToolArguments, ToolResult, TypedTool, Word, no_bool

_MAX_FOLLOW_SECONDS = 60.0
_TAIL_MARGIN_SECONDS = 20.0
_MAX_PROCESSES = 100

Name = Annotated[
    str,
    Field(
        pattern="^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$",
        description="The process's name: letters, digits and `._-`, at most 64.",
    ),
]
Short = Annotated[str, Field(max_length=100)]
Signal = Literal["TERM", "INT", "KILL", "HUP", "QUIT", "USR1", "USR2", "STOP", "CONT"]


class ProcessStartArguments(ToolArguments):
    command: Annotated[Word, Field(min_length=1, description="What bash runs.")]
    name: Annotated[Name | None, Field(description="A name to refer to it by. Default p1, p2, ...")] = None
    cwd: Annotated[Path, Field(description="Directory to start in. Default: the workspace.")] = "."


class ProcessResult(ToolResult):
    name: Short
    command: Annotated[str, Field(max_length=1_000)]
    pid: int
    state: Literal["running", "exited"]
    exit_code: int | None
    started: Short
    ended: Short | None
    log: PathShown
    log_bytes: int
    log_error: Annotated[str | None, Field(max_length=500)]

    def text(self) -> str:
        state = self.state if self.exit_code is None else f"{self.state} with code {self.exit_code}"
        error = f" ({self.log_error})" if self.log_error else ""
        return f"{self.name}: {state}, pid {self.pid}, log {self.log} {self.log_bytes:,} bytes{error}"


class ProcessListArguments(ToolArguments):
    pass


class ProcessListResult(ToolResult):
    processes: Annotated[list[ProcessResult], Field(max_length=_MAX_PROCESSES)]

    def text(self) -> str:
        lines = (f"{process.text()}\n  {process.command}" for process in self.processes)
        return "\n".join(lines) or "[no processes were started]"


class ProcessKillArguments(ToolArguments):
    name: Name
    signal: Annotated[
        Signal, Field(description="Default TERM. KILL follows after 5 s if it does not end.")
    ] = "TERM"


class ProcessKillResult(ProcessResult):
    signal: Short | None
    escalated: bool

    def text(self) -> str:
        notes = ["it had ended before"] if self.signal is None else []
        if self.escalated:
            notes.append(f"it did not end with {self.signal} and got KILL")
        return with_notes(super().text(), notes)


class TailLogArguments(ToolArguments):
    name: Annotated[Name | None, Field(description="A process whose log to read.")] = None
    path: Annotated[Path | None, Field(description="Instead: any file of the workspace.")] = None
    offset: Annotated[
        Count | None, Field(description="The `next_offset` of the result before. Default: the end.")
    ] = None
    limit: Annotated[Positive, Field(description="Bytes to read. Default and at most 65,536.")] = 65_536
    follow: Annotated[
        float,
        Field(ge=0, le=_MAX_FOLLOW_SECONDS),
        BeforeValidator(no_bool),
        Field(description="Wait up to so many seconds, at most 60, until there is something new. Default 0."),
    ] = 0
    file_id: Annotated[
        Word | None,
        Field(max_length=100, description="With `path`: the `file_id` of the result before."),
    ] = None

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.name is None) == (self.path is None):
            raise ValueError("send either `name`, of a process, or `path`, of a file")
        return self


class TailLogResult(ToolResult):
    source: PathShown
    content: Content
    encoding: Encoding
    offset: int
    next_offset: int
    size_bytes: int
    file_id: Short | None
    gap: Literal["rotated", "truncated", "restarted"] | None
    lost_bytes: int | None
    state: Literal["running", "exited"] | None
    exit_code: int | None

    def text(self) -> str:
        notes = []
        if self.gap is not None:
            lost = "" if self.lost_bytes is None else f", {self.lost_bytes:,} bytes are lost"
            notes.append(f"the log was {self.gap}{lost}; this is from offset {self.offset:,}")
        if self.encoding == "base64":
            notes.append("base64")
        more = self.size_bytes - self.next_offset
        notes.append(f"next_offset {self.next_offset}" + (f", {more:,} bytes more" if more > 0 else ""))
        if self.file_id is not None:
            notes.append(f"file_id {self.file_id}")
        if self.state is not None:
            notes.append(self.state if self.exit_code is None else f"exited with code {self.exit_code}")
        return with_notes(self.content, notes)


_READS = types.ToolAnnotations(read_only_hint=True, destructive_hint=False, open_world_hint=False)
_ENDS = types.ToolAnnotations(read_only_hint=False, destructive_hint=True, open_world_hint=False)
_RUNS = types.ToolAnnotations(
    read_only_hint=False, destructive_hint=True, idempotent_hint=False, open_world_hint=True
)

PROCESS_TOOLS = (
    TypedTool(
        "process_start",
        "Start a process",
        "Start a command that runs on its own, such as a server or a long job, and return at once. It "
        "belongs to the session: it goes on when the client disconnects, and ends with the session. It runs "
        "in a bash of its own, in the workspace or in `cwd`, without the variables of the `bash` tool's "
        "shell. What it writes to stdout and stderr is read with tail_log.",
        ProcessStartArguments,
        ProcessResult,
        _RUNS,
    ),
    TypedTool(
        "process_list",
        "List started processes",
        "List the processes that process_start has started in this session, with their exit codes.",
        ProcessListArguments,
        ProcessListResult,
        _READS,
    ),
    TypedTool(
        "process_kill",
        "End a process",
        "Send a signal to a process that process_start has started, and to what it has started itself. "
        "Returns when it has ended.",
        ProcessKillArguments,
        ProcessKillResult,
        _ENDS,
    ),
    TypedTool(
        "tail_log",
        "Read a log",
        "Read the log of a process, or any growing file: its end, or from `offset` on. To go on reading, "
        "send the `next_offset` of the result before; with `follow` the call waits for something new. A log "
        "is kept up to a size, the oldest goes first; `gap` says when something between two calls is lost.",
        TailLogArguments,
        TailLogResult,
        _READS,
        lambda arguments: arguments.follow + _TAIL_MARGIN_SECONDS,
    ),
)
