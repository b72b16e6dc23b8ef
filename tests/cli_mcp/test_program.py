import argparse
import asyncio
import errno
import os
import signal

import pytest

from cli_mcp.program import cannot_listen, listen_address, stop_events


@pytest.mark.parametrize(
    ("text", "address"),
    [
        (":8443", ("", 8443)),
        ("0.0.0.0:1", ("0.0.0.0", 1)),
        ("localhost:80", ("127.0.0.1", 80)),
        ("[::1]:80", ("::1", 80)),
        ("[::]:0", ("::", 0)),
    ],
)
def test_an_address_is_of_ip_or_of_all(text: str, address: tuple[str, int]) -> None:
    assert listen_address(text) == address


@pytest.mark.parametrize("text", ["", "8443", ":x", ":70000", "example.com:80", "127.0.0.1"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        listen_address(text)


def test_an_address_that_cannot_be_had_is_named_with_the_option_that_changes_it() -> None:
    error = OSError(errno.EADDRINUSE, "[Errno 98] error while attempting to bind on address ('::', 2222)")
    said = str(cannot_listen("", 2222, error, "--ssh"))
    assert (
        said
        == "cannot listen on any address port 2222: Address already in use; choose another port with --ssh"
    )


async def test_the_first_signal_asks_to_stop_and_the_second_to_stop_now() -> None:
    stop, stop_now = stop_events([signal.SIGUSR1])
    try:
        os.kill(os.getpid(), signal.SIGUSR1)
        async with asyncio.timeout(10):
            await stop.wait()
        assert not stop_now.is_set()
        os.kill(os.getpid(), signal.SIGUSR1)
        async with asyncio.timeout(10):
            await stop_now.wait()
    finally:
        asyncio.get_running_loop().remove_signal_handler(signal.SIGUSR1)
