import os
import stat
from pathlib import Path

import pytest

from sandbox_agent.exchange import Exchange


@pytest.fixture
def exchange(tmp_path: Path) -> Exchange:
    (tmp_path / "exchange").mkdir()
    return Exchange(tmp_path / "exchange", "/inside/", None)


def test_a_command_gets_its_text_and_two_fifos_that_are_open_for_reading(
    exchange: Exchange, tmp_path: Path
) -> None:
    files = exchange.prepare("a", b"echo hi")
    assert (files.script, files.stdout, files.stderr) == ("/inside/a", "/inside/a.out", "/inside/a.err")
    assert (tmp_path / "exchange/a").read_bytes() == b"echo hi"
    assert stat.S_IMODE((tmp_path / "exchange/a").stat().st_mode) == 0o400
    for fd, name in ((files.stdout_fd, "a.out"), (files.stderr_fd, "a.err")):
        with open(tmp_path / "exchange" / name, "wb", buffering=0) as fifo:
            fifo.write(name.encode())
        assert os.read(fd, 100) == name.encode()
        assert not os.get_inheritable(fd)
        os.close(fd)
    exchange.remove("a")
    assert list((tmp_path / "exchange").iterdir()) == []
    exchange.remove("a")


@pytest.mark.parametrize("obstacle", ["removed", "closed", "a file", "a link"])
def test_a_directory_that_was_tampered_with_is_made_again(
    exchange: Exchange, tmp_path: Path, obstacle: str
) -> None:
    directory = tmp_path / "exchange"
    if obstacle == "closed":
        directory.chmod(0)
    else:
        directory.rmdir()
    if obstacle == "a file":
        directory.touch()
    if obstacle == "a link":
        directory.symlink_to("nowhere")
    files = exchange.prepare("a", b"")
    os.close(files.stdout_fd)
    os.close(files.stderr_fd)
    assert directory.is_dir() and not directory.is_symlink()


@pytest.mark.parametrize("name", ["a", "a.out", "a.err"])
def test_a_name_that_is_taken_is_refused_and_no_descriptor_leaks(
    exchange: Exchange, tmp_path: Path, name: str
) -> None:
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "exchange" / name).mkdir()
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(FileExistsError):
        exchange.prepare("a", b"text")
    assert len(os.listdir("/proc/self/fd")) == before


def test_what_replaced_a_fifo_before_it_was_opened_is_not_read(
    exchange: Exchange, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a pod the sandbox may do so at any moment; a regular file would count as readable for ever."""
    monkeypatch.setattr(os, "mkfifo", lambda path, mode: Path(path).touch())
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(FileExistsError):
        exchange.prepare("a", b"text")
    assert len(os.listdir("/proc/self/fd")) == before
