"""A copy of bash that may be executed and not be read.

The kernel lets no process of the same user look into a process that runs such a program: no ptrace, no
/proc/PID/fd or mem, no pidfd_getfd, no process_vm_writev (ptrace(2), "not dumpable"). What that process
starts is as open as ever. A file without a name, since the user could replace one that has a name. It is
sealed, since all sandboxes of this process execute the same.
"""

import fcntl
import functools
import logging
import os
import shutil
import subprocess
from pathlib import Path

_log = logging.getLogger(__name__)

_BASH = Path("/bin/bash")
_ELF = b"\x7fELF"
_MFD_EXEC = 0x10  # memfd_create(2), since Linux 6.3
_EXECUTE_ONLY = 0o111
_FOR_EVER = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
_TRIAL_STATUS = 7
_TRIAL_SECONDS = 5.0


@functools.cache
def private_bash() -> int | None:
    """A descriptor to execute through /proc/self/fd, the same for the whole life of this process.

    None, and the log says why, where that does not work; then processes of a sandbox can interfere with their
    shell.
    """
    try:
        descriptor = _execute_only_copy(_find_bash().read_bytes())
        _try_out(descriptor)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        _log.warning("shells are not protected from the processes of their own sandbox: %s", error)
        return None
    return descriptor


def is_traced(pid: int) -> bool:
    """Whether somebody has attached to a process, which may have happened before it was out of reach."""
    try:
        status = Path(f"/proc/{pid}/status").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return b"\nTracerPid:\t0\n" not in status


def _find_bash() -> Path:
    found = _BASH if _BASH.exists() else shutil.which("bash")
    if found is None:
        raise ValueError("there is no bash")
    return Path(found)


def _execute_only_copy(program: bytes) -> int:
    if not program.startswith(_ELF):
        raise ValueError("bash is a script")
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        writable = os.memfd_create("bash", flags | _MFD_EXEC)
    except OSError:
        writable = os.memfd_create("bash", flags)
    with open(writable, "wb") as file:
        file.write(program)
        file.flush()
        fcntl.fcntl(writable, fcntl.F_ADD_SEALS, _FOR_EVER)
        os.fchmod(writable, _EXECUTE_ONLY)
        # What is open for writing cannot be executed, and without a right to read this is all that is left.
        return os.open(f"/proc/self/fd/{writable}", os.O_PATH | os.O_CLOEXEC)


def _try_out(descriptor: int) -> None:
    """A mount or a policy may forbid it, and a library be looked for beside the program."""
    tried = subprocess.run(
        [f"/proc/self/fd/{descriptor}", "--norc", "-p", "-c", f"exit {_TRIAL_STATUS}"],
        pass_fds=(descriptor,),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=_TRIAL_SECONDS,
        check=False,
    )
    if tried.returncode != _TRIAL_STATUS:
        raise ValueError("a copy of bash without a name cannot be run here")
