"""A root to confine to, beside a secret: with the kernel's call, and with the walk where it is missing."""

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox_agent import openat2
from sandbox_agent.tools.root import Root

SECRET = "the secret"


def lacks_openat2(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(directory: int, path: str, flags: int, mode: int, resolve: int) -> int:
        raise OSError(errno.ENOSYS, "no such call")

    monkeypatch.setattr(openat2, "openat2", missing)


@pytest.fixture(params=["openat2", "walk"])
def directory(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    if request.param == "walk":
        lacks_openat2(monkeypatch)
    (tmp_path / "secret").write_text(SECRET)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/file").write_text(SECRET)
    root = tmp_path / "root"
    (root / "a/b").mkdir(parents=True)
    (root / "a/b/file").write_text("content\n")
    return root


@pytest.fixture
def root(directory: Path) -> Iterator[Root]:
    opened = Root(directory)
    yield opened
    opened.close()
