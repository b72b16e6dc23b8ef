"""What every test relies on."""

import logging
import signal
from collections.abc import Iterator

import pytest

from cli_mcp.log_budget import RepeatFilter


def pytest_configure() -> None:
    """What a script starts with `&` ignores SIGINT, and so does all that it starts; but tests send it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(autouse=True)
def _every_message_is_seen() -> Iterator[None]:
    """A program that ran inside a test limits what the handlers write, which are pytest's."""
    yield
    for handler in logging.getLogger().handlers:
        for limit in [one for one in handler.filters if isinstance(one, RepeatFilter)]:
            handler.removeFilter(limit)
