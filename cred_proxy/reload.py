"""Takes over the proxy's files when they change on the disk."""

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path

from cli_mcp.mounted import Fingerprint, fingerprint
from cred_proxy.proxy import CredentialProxy

_POLL_SECONDS = 2.0

_log = logging.getLogger(__name__)


async def follow(proxy: CredentialProxy, files: Sequence[Path], known: Fingerprint) -> None:
    """Reload when one of `files` is not what it was at the fingerprint `known`, taken before the proxy loaded
    them, until cancelled. What is invalid is tried again: perhaps only half of a change was there."""
    while True:
        await asyncio.sleep(_POLL_SECONDS)
        current = fingerprint(files)
        if current != known or proxy.problems:
            known = current
            reload_and_log(proxy)


def reload_and_log(proxy: CredentialProxy) -> None:
    """Every problem is said once, also when it lasts."""
    before = proxy.problems
    for source, problem in proxy.reload().items():
        if problem is None:
            _log.info("%s reloaded", source)
        elif before.get(source) != problem:
            _log.warning("%s stays as it was: %s", source, problem)
