"""One command and its outcome: the values that shell, server and local mode hand to each other.

Plain dataclasses and exceptions of the standard library, since the sandbox agent starts in every pod.
"""

from collections.abc import Callable
from dataclasses import dataclass

# What an instance has that says nothing else, and how far it may go (spec.sandbox).
DEFAULT_TIMEOUT_SECONDS = 60.0
MAX_TIMEOUT_SECONDS = 300.0
LONGEST_TIMEOUT_SECONDS = 3600.0
# How long a call waits for earlier ones of its session: many clients give up after 60 s.
QUEUE_SECONDS = 55.0
# GNU timeout(1) uses the same exit status for a command that ran out of time.
TIMEOUT_EXIT_CODE = 124
# What a result carries of one stream, half of it from the start, half from the end: by default, and how
# little and how much an instance may choose.
STREAM_LIMIT_BYTES = 50_000
LEAST_STREAM_LIMIT_BYTES = 1_000
LARGEST_STREAM_LIMIT_BYTES = 65_536
# The directory that the typed tools work in, when it is not the workspace.
ROOT_VARIABLE = "AGENTBOX_ROOT"


KEEP_OUTPUT = "what it gave until then is still wanted"
"""The message of a cancellation (asyncio.Task.cancel) that interrupts a command as any other does, and gives
whoever awaits it its outcome nevertheless."""


@dataclass(frozen=True, slots=True)
class StreamOutput:
    """What a command wrote to one of its streams, cut in the middle when it was too long.

    `head` and `tail` are exact bytes and `tail` is empty unless bytes between the two were left out.
    `file` is the path, as the sandbox sees it, of a file with the whole stream (its first `file_bytes`
    bytes when the whole was too large for that too).
    """

    head: bytes
    tail: bytes = b""
    total_bytes: int = 0
    file: str | None = None
    file_bytes: int = 0

    @property
    def omitted_bytes(self) -> int:
        return self.total_bytes - len(self.head) - len(self.tail)

    @property
    def truncated(self) -> bool:
        return self.omitted_bytes > 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a command that ran.

    `exit_code` is 0..255, 128+n for death by signal n, TIMEOUT_EXIT_CODE after a timeout. `background`
    holds process ids as the sandbox sees them. `notes` are short sentences for whoever reads the result:
    why the shell restarted, that memory ran out, where late output goes.
    """

    exit_code: int
    stdout: StreamOutput
    stderr: StreamOutput
    duration_ms: int
    cwd: str
    timed_out: bool = False
    background: tuple[int, ...] = ()
    shell_restarted: bool = False
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a running command is; `queued` while it waits for an earlier one of its session."""

    elapsed_seconds: float
    output_bytes: int = 0
    last_line: str = ""
    queued: bool = False


ProgressCallback = Callable[[Progress], None]


class ExecutionError(Exception):
    """A command that did not run, or whose outcome is unknown. The message is for the caller to read:
    it names the cause and what to do, and never an address, a path of the host or a traceback."""


class SessionBusy(ExecutionError):
    """Too many calls wait in the session's queue, or this one waited for too long."""


class SessionEnded(ExecutionError):
    """The session was ended (DELETE, idle expiry, shutdown) while the command waited or ran."""


class SandboxUnavailable(ExecutionError):
    """No sandbox can be had: isolation cannot be shown to hold, a limit is reached, the host refuses."""


class NotSessionOwner(ExecutionError):
    """The session belongs to another caller."""


class ToolFailed(ExecutionError):
    """A typed tool cannot do what it was asked: no such file, a name that is taken, a path that leads out."""
