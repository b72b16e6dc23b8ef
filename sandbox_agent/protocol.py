r"""What is said to the shell and what it answers: texts for bash, and the parsers of its reports.

Nothing here does I/O. Two bash processes take part. The *supervisor* is the sandbox's first process and reads
lines from its stdin; at `start NONCE` it runs the *shell*, which reads the lines after that from the same
stdin until it ends. The supervisor writes `NONCE pid PID` on the exits channel when the shell starts, and
`NONCE STATUS` when it has ended. So what ends the shell ends neither the sandbox nor its background jobs.

Command text never stands in these lines: it lies in a file that the shell sources, with fresh FIFOs as stdout
and stderr. `source` rather than `eval`, since bash then prints no job numbers, allows `return`, keeps nothing
of the text in a variable, and still drops the rest of the text on SIGINT as an interactive shell does.

Everything that arrives is written by a process of the sandbox and is hostile input. A report counts only when
the shell itself sent it (see channel.py) and with the nonce of the last request. That it ran the command and
not merely the lines after it, since somebody took that line, it shows on the begins channel beforehand.
"""

import re
import shlex
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from sandbox_agent.snapshot import Snapshot

# A snapshot beyond this is not kept, since a new one comes with every command.
SNAPSHOT_LIMIT_BYTES = 4 << 20
# Far above PATH_MAX (4096): what is longer is no directory.
_CWD_LIMIT_BYTES = 1 << 16
_EXIT_LINE_BYTES = 128
DROP_SIGNAL = signal.SIGRTMAX
"""Has the shell drop the rest of what it runs, as soon as the process that it waits for has ended."""


@dataclass(frozen=True, slots=True)
class Descriptors:
    """Numbers in the sandbox of what the supervisor and the shell write to. `program` is the bash that they
    are, to be executed through /proc/self/fd; None for the one in PATH."""

    reports: int
    begins: int
    exits: int
    program: int | None

    @property
    def bash(self) -> str:
        return "bash" if self.program is None else f"/proc/self/fd/{self.program}"


@dataclass(frozen=True, slots=True)
class Report:
    """The shell's answer to a request: exit status of what ran before, and the state that it left.

    `snapshot` is None when it was too large, or when a command took the shell's means to show its state.
    """

    status: int
    pid: int  # of the shell, as the sandbox sees it
    cwd: bytes
    snapshot: Snapshot | None


@dataclass(frozen=True, slots=True)
class ShellExit:
    """The shell ended; `status` is its exit status as bash puts it into $?."""

    status: int


def supervisor_argv(fds: Descriptors) -> Sequence[str]:
    """The sandbox's first process.

    -p ignores what an image's environment would have it read or import. Started as a job, the shell gets a
    process group of its own, so that `kill 0` in a command misses the supervisor. `wait` without job control
    returns when the shell has ended and not when it is merely stopped.
    """
    named = "" if fds.program is None else _NAME
    text = f"""\
{named}while read -r word nonce; do
  [[ $word == start ]] || continue
  set -m
  exec -a bash {fds.bash} --norc --noprofile --noediting -i {fds.exits}>&- &
  set +m
  printf '%s pid %s\\n' "$nonce" $! >&{fds.exits} {fds.reports}>&-
  wait $!
  printf '%s %s\\n' "$nonce" $? >&{fds.exits} {fds.reports}>&-
done"""
    return (fds.bash, "--norc", "--noprofile", "-p", "-c", text)


def start_lines(nonce: str, fds: Descriptors) -> bytes:
    """For the supervisor: run the shell, and say with `nonce` when it ended. For that shell: get ready."""
    named = "" if fds.program is None else f"{_NAME}exec {fds.program}<&-\n"
    return f"start {nonce}\n{_SETUP}{named}".encode()


# A program that was run through a descriptor is called by its number, until it says otherwise.
_NAME = "printf bash 2>/dev/null >/proc/self/task/$$/comm\n"
# Without job control there are no notices of jobs, and a background job is no leader of a process group,
# for which setsid(1) would fork; but a SIGINT counts only if it ended the child that the shell waits for,
# and what a trap sends then always counts. It does so inside of a command alone: a shell that its own trap
# interrupts while it reads a line, or reports (`main`), loses its place in what it has read, and crashes.
# TMOUT would end an interactive shell that waits. Both functions are readonly, so that a command that
# redefines them by accident gets an error. The report must not touch other variables, since any name may have
# become readonly, and "$?" has to be expanded first. A shell that cannot source any more (enable -n) must not
# look healthy: it would report each next command as done. It reads many lines for one command: prompts are
# for one of them, and are set again with the next command.
_SETUP = r"""
set +o history; history -c; set +H; set +m; shopt -s expand_aliases; unset HISTFILE TMOUT PS1 PS2
trap '\builtin test -n "${BASH_SOURCE[*]: -1}" -a "${BASH_SOURCE[*]: -1}" != main &&
  \builtin kill -INT $$' RTMAX
__cli_mcp_status() { \builtin return "$1"; }
__cli_mcp_report() {
  \builtin printf '\0%s %s %s\0%s\0' "$1" "$?" "$$" "$PWD"
  \builtin . /dev/null || \builtin return
  \builtin declare -p; \builtin printf '\0'
  \builtin declare -f; \builtin printf '\0'
  \builtin alias -p; \builtin printf '\0'
  \builtin umask -p
  \builtin set +m
  \builtin unset -v PROMPT_COMMAND PS0 PS1 PS2
}
readonly -f __cli_mcp_status __cli_mcp_report
"""


def report_line(nonce: str, fds: Descriptors) -> bytes:
    """For the shell: report $? and the state, marked with `nonce`.

    Traps are listed outside of the function, since bash hides some of them inside of one. Left of `||`
    neither errexit nor an ERR trap minds the status.
    """
    out = f">&{fds.reports}"
    return (
        f"\\__cli_mcp_report {nonce} {out} || \\builtin :; "
        f"\\builtin trap -p {out}; \\builtin printf '\\0%s.' {nonce} {out}\n"
    ).encode()


def source_line(
    path: str,
    stdout: str,
    stderr: str,
    *,
    last_status: int,
    nonce: str,
    fds: Descriptors,
    prompts: bytes = b"",
) -> bytes:
    """For the shell: say with `nonce` that it is about to, and run the commands in the file `path`, with $?
    as the command before left it and with `prompts`, as a snapshot has them. Nothing is run when it cannot be
    said, so that it may be sent again.

    What stands right of `||` is not shielded from errexit and ERR traps, what stands left of it is.
    """
    status = f"\\__cli_mcp_status {last_status} || " if last_status else ""
    redirections = f"</dev/null >{shlex.quote(stdout)} 2>{shlex.quote(stderr)}"
    closed = f"{fds.reports}>&- {fds.begins}>&-"
    return (
        f"if \\builtin printf '%s\\n' {nonce} >&{fds.begins}; then ".encode()
        + prompts
        + f"{status}\\builtin . {shlex.quote(path)} {redirections} {closed}; fi\n".encode()
    )


class ReportReader:
    r"""Finds the report with the expected nonce in whatever arrives on the reports pipe.

    A frame is `\0NONCE STATUS PID\0CWD\0` and the sections of a snapshot with NUL between them, then
    `\0NONCE.`; bash has no NUL in any value. Memory is bounded: of a longer frame only the head is kept.
    """

    def __init__(self) -> None:
        self._begin = self._end = b""
        self._buffer = bytearray()
        self._whole = True

    def expect(self, nonce: str) -> None:
        """Forget what came so far and wait for the report with this nonce."""
        self._begin, self._end = f"\0{nonce} ".encode(), f"\0{nonce}.".encode()
        self._buffer.clear()
        self._whole = True

    @property
    def status_begun(self) -> int | None:
        """The exit status in a report of which only the beginning has come."""
        header = _BEGUN.match(self._buffer, len(self._begin)) if self._begin else None
        return int(header[1]) if header is not None and self._buffer.startswith(self._begin) else None

    def feed(self, data: bytes) -> Report | None:
        """The report, when `data` completes a valid one; an invalid one is noise, and so is a second one."""
        if not self._begin:
            return None
        buffer = self._buffer
        searched = max(0, len(buffer) - len(self._end))
        buffer += data
        if not buffer.startswith(self._begin):
            start = buffer.find(self._begin)
            if start < 0:
                del buffer[: -len(self._begin)]
                return None
            del buffer[:start]
            searched = 0
        end = buffer.find(self._end, searched)
        if end >= 0:
            report = _parse(bytes(buffer[len(self._begin) : end]), whole=self._whole)
            buffer.clear()
            self._whole = True
            if report is not None:
                self._begin = b""
            return report
        if len(buffer) > SNAPSHOT_LIMIT_BYTES:
            self._whole = False
            del buffer[2 * _CWD_LIMIT_BYTES : -len(self._end)]
        return None


def started_pid(data: bytes, nonce: str) -> int | None:
    """The shell's pid in the sandbox, where the supervisor says with `nonce` that it started it."""
    found = re.search(_START_LINE % re.escape(nonce.encode()), data)
    return int(found[1]) if found is not None else None


class ExitReader:
    """Finds the line of the supervisor that says the expected shell ended."""

    def __init__(self) -> None:
        self._line: re.Pattern[bytes] | None = None
        self._rest = b""

    def expect(self, nonce: str) -> None:
        """Forget what came so far and wait for the line with this nonce."""
        self._line, self._rest = re.compile(_EXIT_LINE % re.escape(nonce.encode())), b""

    def feed(self, data: bytes) -> ShellExit | None:
        """The exit, when `data` completes its line."""
        if self._line is None:
            return None
        found = self._line.search(self._rest + data)
        if found is None:
            self._rest = (self._rest + data)[-_EXIT_LINE_BYTES:]
            return None
        self._line, self._rest = None, b""
        return ShellExit(int(found[1]))


_HEADER = re.compile(rb"([0-9]{1,3}) ([0-9]{1,10})")
_BEGUN = re.compile(rb"([01]?[0-9]{1,2}|2[0-4][0-9]|25[0-5]) [0-9]{1,10}\0")
# Begin with the nonce: where that does not stand, a search goes on without trying anything.
_START_LINE = rb"%b pid ([0-9]{1,10})\n"
_EXIT_LINE = rb"%b ([01]?[0-9]{1,2}|2[0-4][0-9]|25[0-5])\n"


def _parse(frame: bytes, *, whole: bool) -> Report | None:
    head, _, rest = frame.partition(b"\0")
    cwd, _, sections = rest.partition(b"\0")
    header = _HEADER.fullmatch(head)
    if header is None or int(header[1]) > 255 or len(cwd) > _CWD_LIMIT_BYTES:
        return None
    try:
        snapshot = Snapshot.load(cwd + b"\0" + sections) if whole else None
    except ValueError:
        return None
    if snapshot is not None and not snapshot.variables:
        snapshot = None  # every shell has some: `declare` was disabled
    return Report(int(header[1]), int(header[2]), cwd, snapshot)
