"""Running Python of this environment as an unprivileged user, when the tests run as root."""

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

from local_runtime.state import first_closed

UNPRIVILEGED_UID = 1_234_567
REPOSITORY = Path(__file__).parents[2]


@cache
def as_unprivileged_user() -> tuple[str, ...]:
    """What to put before a command to run it as another user than root: nothing, when this one is none.

    The interpreter often lies where others may not go, such as below /root. Then that directory is replaced,
    in a mount namespace of the command alone, by one that holds nothing but the interpreter.
    """
    if os.geteuid() != 0:
        return ()
    if shutil.which("setpriv") is None or shutil.which("unshare") is None:
        pytest.skip("setpriv and unshare (util-linux) are needed to become an unprivileged user")
    drop = (
        *("setpriv", f"--reuid={UNPRIVILEGED_UID}", f"--regid={UNPRIVILEGED_UID}", "--clear-groups"),
        *("--inh-caps=-all", "env", f"PYTHONPATH={REPOSITORY}", "HOME=/nonexistent"),
    )
    needed = [Path(sys.base_prefix), Path(sys.prefix), REPOSITORY]
    closed = {path: hidden for path in needed if (hidden := first_closed(path))}
    script = [f'exec {shlex.join(drop)} "$@"']
    for hidden in set(closed.values()):
        below = [path.resolve() for path, where in closed.items() if where == hidden]
        script[:0] = _uncover(hidden, below)
    prefix = ("unshare", "--mount", "bash", "-ec", "\n".join(script), "bash") if closed else drop
    check = subprocess.run([*prefix, sys.executable, "-c", "import pydantic"], capture_output=True)
    if check.returncode != 0:
        pytest.skip(f"Python cannot be run as an unprivileged user here: {check.stderr.decode()}")
    return prefix


def _uncover(hidden: Path, below: list[Path]) -> list[str]:
    lines = [f"kept=$(mktemp -d) && mount --bind {hidden} $kept", f"mount -t tmpfs -o mode=755 none {hidden}"]
    for path in below:
        lines += [f"mkdir -p {path}", f"mount --bind $kept/{path.relative_to(hidden)} {path}"]
    return [*lines, "umount $kept && rmdir $kept"]


@contextmanager
def passable_directory(uid: int | None = None) -> Iterator[Path]:
    """A temporary directory that other users may pass through, unlike pytest's; owned by `uid`, if given."""
    path = Path(tempfile.mkdtemp(prefix="cli-mcp-test-"))
    path.chmod(0o711)
    if uid is not None:
        os.chown(path, uid, uid)
    try:
        yield path
    finally:
        subprocess.run(["rm", "-rf", path], check=False)
