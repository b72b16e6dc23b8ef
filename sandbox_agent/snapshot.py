"""The state of a shell as text that bash printed, and the script that gives it to a new shell.

Restored are directory, variables, functions, aliases, options, umask and traps. Lost with a shell are its
ulimits and its job table.
"""

import re
import shlex
from dataclasses import dataclass, fields

_NAMES = rb"[A-Za-z0-9_:-]*"
_OPTIONS = re.compile(rb'^declare -[A-Za-z]+ (BASHOPTS|SHELLOPTS)="(' + _NAMES + rb')"$', re.MULTILINE)
# Variables that mean something else in another process, or would do harm there: TMOUT ends a waiting
# shell, BASH_XTRACEFD names a descriptor and closes it, assignments to RANDOM seed it. Those that bash itself
# changes from command to command would make every state another one.
_NOT_RESTORED = re.compile(
    rb"^declare -\S+ (?:BASHOPTS|BASHPID|BASH_ARGV0|BASH_LINENO|BASH_VERSINFO|BASH_XTRACEFD|COPROC"
    rb"|EPOCHREALTIME|EPOCHSECONDS|EUID|HISTCMD|HISTFILE|LINENO|PPID|PWD|RANDOM|SHELLOPTS|SHLVL"
    rb"|SRANDOM|TMOUT|UID|_)(?:=.*)?\n",
    re.MULTILINE,
)
# errexit, noexec and onecmd would end or mute the new shell; the rest belongs to how it is driven.
_OPTIONS_NOT_RESTORED = {
    b"errexit",
    b"noexec",
    b"onecmd",
    b"monitor",
    b"history",
    b"histexpand",
    b"emacs",
    b"vi",
}
_SHOPTS_NOT_RESTORED = {b"login_shell", b"restricted_shell", b"expand_aliases", b"extdebug"}
# On in every new shell, so that a snapshot without them means that they were turned off.
_OPTIONS_ON = (b"braceexpand", b"hashall", b"interactive-comments")


# A value may have line feeds in it.
_PROMPTS = re.compile(
    rb"^declare -\S+ (?:PROMPT_COMMAND|PS[012])(?:=.*?)?\n(?=declare -|\Z)", re.MULTILINE | re.DOTALL
)
_PROMPTS_LIMIT_BYTES = 1 << 15


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The working directory, and what `declare -p`, `declare -f`, `alias -p`, `umask -p; trap -p` printed.

    Options need no section of their own: `declare -p` shows BASHOPTS and SHELLOPTS.
    """

    cwd: bytes
    variables: bytes
    functions: bytes
    aliases: bytes
    umask_and_traps: bytes

    def prompts(self) -> bytes:
        """Bash text that sets what is run or expanded at prompts, to stand before other text of a line; none
        when that is too much for a line."""
        found = (text.rstrip(b"\n") for text in _PROMPTS.findall(self.variables))
        # Quoted, so that the line around it can be parsed whatever it is.
        text = b"".join(b"\\builtin eval " + _quoted(text) + b" || \\builtin :; " for text in found)
        return text if len(text) <= _PROMPTS_LIMIT_BYTES else b""

    def dump(self) -> bytes:
        """All of it; bash has no NUL in any value."""
        return b"\0".join(getattr(self, field.name) for field in fields(self))

    @classmethod
    def load(cls, data: bytes) -> "Snapshot":
        """What dump() made. Raises ValueError when it is anything else."""
        parts = data.split(b"\0")
        if len(parts) != len(fields(cls)):
            raise ValueError("not a snapshot")
        return cls(*parts)


def restore_script(snapshot: Snapshot) -> bytes:
    """Bash text that brings a fresh shell into the state of the snapshot.

    The order matters: shopts first, since functions may need extglob to parse; the directory before the
    variables, of which OLDPWD and CDPATH are two; options after functions, since
    posix forbids some of their names; aliases after functions, which bash printed with aliases expanded;
    traps last, so that none of this triggers them. A builtin that fails, on a readonly variable for example,
    does not keep the rest from being restored.
    """
    listed = dict(_OPTIONS.findall(snapshot.variables))
    shopts = _split(listed.get(b"BASHOPTS", b"")) - _SHOPTS_NOT_RESTORED
    options = _split(listed.get(b"SHELLOPTS", b"")) - _OPTIONS_NOT_RESTORED
    cwd = _quoted(snapshot.cwd)
    lines = [
        b"for __cli_mcp_name in ${BASHOPTS//:/ }; do",
        b'  [[ $__cli_mcp_name == expand_aliases ]] || \\builtin shopt -u "$__cli_mcp_name"',
        b"done",
        *(b"\\builtin shopt -s " + name for name in sorted(shopts)),
        b"\\builtin cd -- " + cwd,
        _NOT_RESTORED.sub(b"", snapshot.variables),
        b"\\builtin unset -v __cli_mcp_name",
        snapshot.functions,
        *(b"\\builtin set +o " + name for name in _OPTIONS_ON if name not in options),
        *(b"\\builtin set -o " + name for name in sorted(options)),
        snapshot.aliases,
        snapshot.umask_and_traps,
    ]
    return b"\n".join(lines) + b"\n"


def _quoted(value: bytes) -> bytes:
    return shlex.quote(value.decode(errors="surrogateescape")).encode(errors="surrogateescape")


def _split(names: bytes) -> set[bytes]:
    return {name for name in names.split(b":") if name}
