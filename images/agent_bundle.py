"""Build the agent that is copied into other images: a Python with its own loader, libraries and modules.

    python3 images/agent_bundle.py SOURCES DESTINATION

SOURCES has the packages `sandbox_agent` and `cli_mcp`. The bundle in DESTINATION runs when it is mounted at
/opt/cli-mcp, in any image of the same architecture, also in one without a libc. It is made of the Python that
runs this script, which has to be linked with glibc; `patchelf` has to be in PATH.

    bin/sandbox-agent   starts the agent; the kernel reads its first line, so no shell is needed
    bin/python3         its ELF interpreter and its library path are the bundle's own
    lib/                loader and shared libraries
    lib/pythonX.Y/      compiled modules: what the agent imports and what that imports

Leaves out TLS, archives and process pools: the agent needs none of them, and every pod with an image of its
own copies the bundle when it starts.
"""

import argparse
import py_compile
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from modulefinder import ModuleFinder
from pathlib import Path

HOME = Path("/opt/cli-mcp")
LAUNCHER = f"""#!{HOME}/bin/python3 -IS
import sys

from sandbox_agent.main import main

sys.exit(main(sys.argv[1:]))
"""
# What the interpreter and its compiled modules import by name, where no import statement shows it.
IMPLICIT_MODULES = (
    "encodings.aliases",
    "encodings.ascii",
    "encodings.idna",
    "encodings.latin_1",
    "encodings.utf_8",
    "_strptime",
    "linecache",
    "traceback",
    "warnings",
)
# Optional imports of the standard library, most of them inside functions, that the agent never reaches.
EXCLUDED_MODULES = (
    "_osx_support",
    "_pydecimal",
    "bz2",
    "concurrent.futures.process",
    "ctypes.macholib",
    "csv",
    "decimal",
    "doctest",
    "email",
    "getopt",
    "http",
    "importlib.metadata",
    "importlib.resources",
    "lzma",
    "multiprocessing",
    "pdb",
    "pydoc",
    "ssl",
    "statistics",
    "sysconfig",
    "tarfile",
    "tkinter",
    "tracemalloc",
    "unittest",
    "urllib.request",
    "xml",
    "zipfile",
    "zlib",
)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("sources", type=Path)
    parser.add_argument("destination", type=Path)
    options = parser.parse_args(arguments)
    build(options.sources.resolve(), options.destination)
    return 0


def build(sources: Path, destination: Path) -> None:
    """Write the bundle; `destination` must not have one yet. Raises subprocess.CalledProcessError."""
    standard_library = destination / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    extensions = standard_library / "lib-dynload"
    extensions.mkdir(parents=True)
    binaries = destination / "bin"
    binaries.mkdir()
    python = binaries / "python3"
    shutil.copy(Path(sys.executable).resolve(), python)
    for name, file in sorted(imported_modules(sources).items()):
        if file.suffix == ".py":
            compile_module(name, file, standard_library)
        else:
            shutil.copy(file, extensions)
    copied = shared_libraries([python, *extensions.iterdir()])
    for library in copied:
        shutil.copy(library, destination / "lib")
    make_self_contained(python, [*extensions.iterdir(), *(destination / "lib").glob("*.so*")])
    launcher = binaries / "sandbox-agent"
    launcher.write_text(LAUNCHER)
    launcher.chmod(0o755)


def imported_modules(sources: Path) -> dict[str, Path]:
    """Files of the agent's modules and of all that they import, by module name."""
    paths = [str(sources), *(path for path in sys.path if path and Path(path) != Path(__file__).parent)]
    finder = ModuleFinder(path=paths, excludes=EXCLUDED_MODULES)
    agent = (path.relative_to(sources) for path in sources.glob("sandbox_agent/**/*.py"))
    for module in agent:
        finder.import_hook(".".join(module.with_suffix("").parts).removesuffix(".__init__"))
    for name in IMPLICIT_MODULES:
        finder.import_hook(name)
    files = ((name, getattr(module, "__file__", None)) for name, module in finder.modules.items())
    return {name: Path(file) for name, file in files if file}


def compile_module(name: str, file: Path, library: Path) -> None:
    """The compiled module in the place of its source: never stale, and not written again at run time."""
    target = library.joinpath(*name.split("."))
    if file.name == "__init__.py":
        target /= "__init__"
    target.parent.mkdir(parents=True, exist_ok=True)
    py_compile.compile(
        str(file),
        cfile=f"{target}.pyc",
        dfile=f"{name.replace('.', '/')}.py",
        doraise=True,
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
    )


def shared_libraries(binaries: Iterable[Path]) -> set[Path]:
    """What the binaries are linked with, the loader among them."""
    listed = subprocess.run(
        ["ldd", *map(str, binaries)], capture_output=True, text=True, check=True, env={"LC_ALL": "C"}
    ).stdout
    missing = re.findall(r"(\S+) => not found", listed)
    if missing:
        raise FileNotFoundError(f"shared libraries are not installed: {', '.join(sorted(set(missing)))}")
    return {Path(path) for path in re.findall(r"(?:=> |^\s+)(/\S+) \(0x", listed, re.MULTILINE)}


def make_self_contained(python: Path, libraries: Iterable[Path]) -> None:
    """Point the interpreter to the bundle's loader and libraries.

    As DT_RPATH, which counts before LD_LIBRARY_PATH and the image's own directories, and which the libraries
    that the executable loads inherit unless they have a DT_RUNPATH (ld.so(8)).
    """
    loader = patchelf("--print-interpreter", python).strip()
    patchelf("--set-interpreter", str(HOME / "lib" / Path(loader).name), python)
    patchelf("--force-rpath", "--set-rpath", str(HOME / "lib"), python)
    for library in libraries:
        if patchelf("--print-rpath", library).strip():
            patchelf("--remove-rpath", library)


def patchelf(*arguments: str | Path) -> str:
    return subprocess.run(
        ["patchelf", *map(str, arguments)], stdout=subprocess.PIPE, text=True, check=True
    ).stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
