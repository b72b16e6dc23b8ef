"""The state of a shell as text that bash printed, and the script that gives it to a new shell.

Restored are directory, variables, functions, aliases, options, umask and traps. Lost with a shell are its
ulimits, its job table and whatever bash itself keeps in variables.
"""

import re
import shlex
from dataclasses import dataclass, fields
from typing import ClassVar

# Variables that describe the bash process (bash(1), "Shell Variables") or that `cd` sets.
_SHELL_VARIABLES = (
    rb"BASH|BASHOPTS|BASHPID|BASH_[A-Z0-9_]+|COMP_[A-Z]+|COPROC|DIRSTACK|EPOCHREALTIME|EPOCHSECONDS|EUID|FUNCNAME"
    rb"|GROUPS|HISTCMD|LINENO|OPTIND|OPTERR|PIPESTATUS|PPID|PWD|RANDOM|SECONDS|SHELLOPTS|SHLVL|SRANDOM|UID|_"
    rb"|HISTFILE|PS1|PS2"
)
# One line of `declare -p`: NAME, NAME="...", NAME=$'...' or NAME=([0]="..." ...); older bash breaks lines
# inside of the double quotes.
_QUOTED = rb"\"(?:[^\"\\]|\\.)*+\"|\$'(?:[^'\\]|\\.)*+'|'[^']*+'"
_DECLARATION = re.compile(
    rb"declare -[A-Za-z-]++ (?P<name>[A-Za-z_][A-Za-z0-9_]*+)"
    rb"(?:=(?:" + _QUOTED + rb"|\((?:[^\"'()\\$]|\\.|" + _QUOTED + rb")*+\)|[^\n\"'(]*+))?+\n",
    re.DOTALL,
)
_OWN_VARIABLE = re.compile(_SHELL_VARIABLES)
_OPTION = re.compile(rb"set [-+]o ([a-z-]+)")
_SHOPT = re.compile(rb"shopt -[su] ([a-z0-9_]+)")
# errexit, noexec and onecmd would end or mute the new shell; the rest belongs to how it is driven.
_DROPPED_OPTIONS = {b"errexit", b"noexec", b"onecmd", b"monitor", b"history", b"histexpand", b"emacs", b"vi"}
_DROPPED_SHOPTS = {b"login_shell", b"restricted_shell", b"expand_aliases", b"extdebug"}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The output of the builtin that each field is named after, and the working directory."""

    SECTIONS: ClassVar[int] = 6

    cwd: bytes
    shopt: bytes
    variables: bytes  # declare -p
    functions: bytes  # declare -f
    aliases: bytes  # alias -p
    options: bytes  # set +o
    umask_and_traps: bytes  # umask -p; trap -p

    def dump(self) -> bytes:
        """All of it as bytes; bash has no NUL in any value."""
        return b"\0".join(getattr(self, field.name) for field in fields(self))

    @classmethod
    def load(cls, data: bytes) -> "Snapshot":
        """What dump() made. Raises ValueError when it is anything else."""
        parts = data.split(b"\0")
        if len(parts) != cls.SECTIONS + 1:
            raise ValueError("not a snapshot")
        return cls(*parts)


def restore_script(snapshot: Snapshot) -> bytes:
    """Bash text that brings a fresh shell into the state of the snapshot.

    Options that change how text is parsed come before functions where these need them (extglob) and after them
    where they would be in the way (posix), aliases after functions, since bash printed those with aliases
    expanded already.
    """
    cwd = shlex.quote(snapshot.cwd.decode(errors="surrogateescape")).encode(errors="surrogateescape")
    return b"\n".join(
        (
            b"\\builtin cd -- " + cwd,
            _lines(snapshot.shopt, _SHOPT, _DROPPED_SHOPTS),
            b"".join(
                match[0]
                for match in _DECLARATION.finditer(snapshot.variables)
                if not _OWN_VARIABLE.fullmatch(match["name"])
            ),
            snapshot.functions,
            snapshot.umask_and_traps,
            _lines(snapshot.options, _OPTION, _DROPPED_OPTIONS),
            snapshot.aliases,
        )
    )


def _lines(section: bytes, pattern: re.Pattern[bytes], dropped: set[bytes]) -> bytes:
    matches = (pattern.fullmatch(line) for line in section.splitlines())
    return b"\n".join(match[0] for match in matches if match and match[1] not in dropped)
