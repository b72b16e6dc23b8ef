"""What programs that serve have in common: an address to listen on, signals, and how they fail to start."""

import argparse
import asyncio
import gc
import ipaddress
import os
import resource
import signal
from collections.abc import Iterable

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class CannotStart(Exception):
    """Something about the arguments or files; the message is for the person who typed them."""


def listen_address(text: str) -> tuple[str, int]:
    """An IP address, or "" for all, and a port. Raises argparse.ArgumentTypeError."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no [HOST]:PORT")
    if host == "localhost":
        host = "127.0.0.1"
    try:
        return host and str(ipaddress.ip_address(host)), int(port)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{host!r} is no IP address") from None


def cannot_listen(host: str, port: int, error: OSError, option: str = "--listen") -> CannotStart:
    """What to say when an address cannot be had."""
    # asyncio puts the address into strerror, a second time.
    cause = os.strerror(error.errno) if error.errno else error
    return CannotStart(
        f"cannot listen on {host or 'any address'} port {port}: {cause}; choose another port with {option}"
    )


def stop_events(signals: Iterable[signal.Signals] = STOP_SIGNALS) -> tuple[asyncio.Event, asyncio.Event]:
    """Events of the running loop, which the first and the second of these signals set."""
    stop, stop_now = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (stop_now if stop.is_set() else stop).set()

    for number in signals:
        asyncio.get_running_loop().add_signal_handler(number, on_signal)
    return stop, stop_now


def allow_all_descriptors() -> None:
    """Raise the soft limit on open files to the hard one: each connection and sandbox takes some."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def keep_out_of_garbage_collection() -> None:
    """All that is there now, for a program that has been set up and serves from now on: a full collection
    would walk over every imported module, and stop all callers for as long: 0.1 s for the server's."""
    gc.collect()
    gc.freeze()
