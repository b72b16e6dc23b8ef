"""What is said to the shell and what it answers: texts for bash, and the parser of its reports.

Nothing here does I/O. Two bash processes take part. The *supervisor* is the sandbox's first process and reads
lines from its stdin; at `start NONCE` it runs the *shell*, which reads the lines after that from the same
stdin until it ends, and then the supervisor writes `NONCE STATUS` on the exits pipe. So whatever ends the
shell ends neither the sandbox nor its background jobs.

Command text never stands in these lines: it lies in a file that the shell sources, with fresh FIFOs as stdout
and stderr. `source` rather than `eval`, since bash then prints no job numbers, allows `return`, keeps nothing
of the text in a variable, and still drops the rest of the text on SIGINT as an interactive shell does.

Everything that arrives is written by a process of the sandbox and may be forged. A report counts only with
the nonce of the last request, which the sandbox's processes do not see unless they go looking for it.
"""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from sandbox_agent.snapshot import Snapshot

# A snapshot beyond this is not kept: it is copied after every command.
SNAPSHOT_LIMIT_BYTES = 4 << 20
# PATH_MAX is 4096 and bash quotes nothing here; a longer path is no path.
_CWD_LIMIT_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Report:
    """The shell's answer to a request: exit status of what ran before, and the state that it left.

    `snapshot` is None when it was too large.
    """

    status: int
    pid: int  # as the sandbox sees it
    cwd: bytes
    snapshot: Snapshot | None


@dataclass(frozen=True, slots=True)
class ShellExit:
    """The shell ended; `status` is its exit status as bash puts it into $?."""

    status: int


def supervisor_argv(reports_fd: int, exits_fd: int) -> Sequence[str]:
    """The sandbox's first process.

    -p ignores what an image's environment would make it read or import. Started as a job, the shell gets a
    process group of its own, so that `kill 0` in a command misses the supervisor. `wait` without job control
    returns when the shell has ended and not when it is merely stopped.
    """
    text = f"""\
while builtin read -r word nonce; do
  [[ $word == start ]] || continue
  set -m
  bash --norc --noprofile --noediting -i {exits_fd}>&- &
  set +m
  wait $!
  printf '%s %s\\n' "$nonce" $? >&{exits_fd} {reports_fd}>&-
done"""
    return ("bash", "--norc", "--noprofile", "-p", "-c", text)


def start_line(nonce: str) -> bytes:
    """For the supervisor: run the shell, and say with `nonce` when it ended."""
    return f"start {nonce}\n".encode()


# Functions of the report: readonly, so that a command that redefines them by accident gets an error.
# __cli_mcp_report must not touch a variable (any name may be readonly), and "$?" has to be its first word.
_SETUP = r"""
set +H; set +o history; unset HISTFILE PS1 PS2; set -m; shopt -s expand_aliases
__cli_mcp_status() { \builtin return "$1"; }
__cli_mcp_report() {
  \builtin printf '\0%s %s %s\0%s\0' "$1" "$?" "$$" "$PWD"
  \builtin shopt -p; \builtin printf '\0'; \builtin declare -p; \builtin printf '\0'
  \builtin declare -f; \builtin printf '\0'; \builtin alias -p; \builtin printf '\0'
  \builtin set +o; \builtin printf '\0'; \builtin umask -p
  \builtin set -m
}
readonly -f __cli_mcp_status __cli_mcp_report
"""


def setup_lines() -> bytes:
    """For a shell that just started."""
    return _SETUP.encode()


def report_line(nonce: str, reports_fd: int) -> bytes:
    """For the shell: report $? and the state, marked with `nonce`.

    Traps are listed outside of the function, since bash hides DEBUG, RETURN and ERR traps inside of one. After
    `||` neither errexit nor an ERR trap minds the status.
    """
    out = f">&{reports_fd}"
    return (
        f"__cli_mcp_report {nonce} {out} || \\builtin :;"
        f" \\builtin trap -p {out}; \\builtin printf '\\0%s.' {nonce} {out}\n"
    ).encode()


def source_line(path: str, stdout: str, stderr: str, *, last_status: int, reports_fd: int) -> bytes:
    """For the shell: run the commands in the file `path`, with $? as it was left by the command before.

    The right side of `||` is not shielded from errexit and ERR traps, the left side is.
    """
    status = f"__cli_mcp_status {last_status} ||" if last_status else "\\builtin :;"
    redirections = f"</dev/null >{shlex.quote(stdout)} 2>{shlex.quote(stderr)} {reports_fd}>&-"
    return f"{status} \\builtin . {shlex.quote(path)} {redirections}\n".encode()


class ReportReader:
    """Finds the report with the expected nonce in whatever arrives on the reports pipe.

    A frame is  NUL nonce SP status SP pid NUL cwd NUL section NUL ... section NUL nonce '.'  and bash has no
    NUL in any value. Memory is bounded: of a longer frame only the head is kept.
    """

    def __init__(self) -> None:
        self._begin = self._end = b""
        self._buffer = bytearray()
        self._dropped = False

    def expect(self, nonce: str) -> None:
        """Forget what came so far and wait for the report with this nonce."""
        self._begin, self._end = f"\0{nonce} ".encode(), f"\0{nonce}.".encode()
        self._buffer.clear()
        self._dropped = False

    def feed(self, data: bytes) -> Report | None:
        """The report, when `data` completes a valid one. An invalid one is treated as noise."""
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
            report = _parse(bytes(buffer[len(self._begin) : end]), whole=not self._dropped)
            self._begin = b"" if report else self._begin
            buffer.clear()
            return report
        if len(buffer) > SNAPSHOT_LIMIT_BYTES:
            self._dropped = True
            del buffer[_CWD_LIMIT_BYTES : -len(self._end)]
        return None


_HEADER = re.compile(rb"(\d{1,3}) (\d{1,10})")


def _parse(frame: bytes, *, whole: bool) -> Report | None:
    fields = frame.split(b"\0")
    header = _HEADER.fullmatch(fields[0])
    if header is None or len(fields) < 3 or len(fields[1]) > _CWD_LIMIT_BYTES:
        return None
    status, pid, cwd = int(header[1]), int(header[2]), fields[1]
    if status > 255:
        return None
    sections = fields[2:]
    snapshot = Snapshot(cwd, *sections) if whole and len(sections) == Snapshot.SECTIONS else None
    if whole and snapshot is None:
        return None
    return Report(status, pid, cwd, snapshot)


_EXIT_LINE_BYTES = 128
_EXIT_LINE = re.compile(rb"([0-9a-f]{1,64}) (\d{1,3})\n")


class ExitReader:
    """Finds the line of the supervisor that says the expected shell ended."""

    def __init__(self) -> None:
        self._nonce = self._buffer = b""

    def expect(self, nonce: str) -> None:
        """Forget what came so far and wait for the line with this nonce."""
        self._nonce, self._buffer = nonce.encode(), b""

    def feed(self, data: bytes) -> ShellExit | None:
        self._buffer += data
        for nonce, status in _EXIT_LINE.findall(self._buffer):
            if nonce == self._nonce and int(status) <= 255:
                self._buffer, self._nonce = b"", b""
                return ShellExit(int(status))
        self._buffer = self._buffer[-_EXIT_LINE_BYTES:]
        return None
