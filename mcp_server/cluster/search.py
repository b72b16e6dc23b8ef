"""One search for a session's pod, or for the end of one: rounds until it is done, refused or out of time."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from cli_mcp.execution import SandboxUnavailable
from mcp_server.backend import SessionKey
from mcp_server.cluster.diagnosis import quote
from mcp_server.cluster.kubernetes import KubernetesError, Refused
from mcp_server.cluster.workspaces import Workspace

FIND_SECONDS = 30.0
"""How long a call looks for its pod while the API server fails or others get in first."""
_FIRST_PAUSE_SECONDS = 0.02
_LONGEST_PAUSE_SECONDS = 2.0
_EAGER_ROUNDS = 5

T = TypeVar("T")


@dataclass(slots=True)
class Search:
    """What it has learned that no list says. Fields are of this one search for `session`."""

    session: SessionKey
    trusts_cache: bool = False
    """Whether the first step may rest on what the watch shows."""
    lost: set[tuple[str, str]] = field(default_factory=set)
    """Uids and revisions of warm pods that had been changed, or whose workspace somebody else has."""
    kept: Workspace | None = None
    """The workspace that the session left behind, as it was listed last."""
    taken: set[str] = field(default_factory=set)
    rounds: int = 0
    pause_seconds: float = _FIRST_PAUSE_SECONDS
    last_error: KubernetesError | None = None

    async def pause(self) -> None:
        error = self.last_error
        asked = error.retry_after_seconds if isinstance(error, Refused) else None
        await asyncio.sleep(max(self.pause_seconds, asked or 0.0))
        self.pause_seconds = min(2 * self.pause_seconds, _LONGEST_PAUSE_SECONDS)

    async def until_done(self, step: Callable[["Search"], Awaitable[T | None]], failure: str) -> T:
        """The first result of `step` that is not None, tried again over errors that may pass.

        Raises SandboxUnavailable, with `failure` and the cause, after FIND_SECONDS or at a refusal.
        """
        try:
            async with asyncio.timeout(FIND_SECONDS):
                while True:
                    self.rounds += 1
                    if self.rounds > _EAGER_ROUNDS:
                        await self.pause()
                    try:
                        result = await step(self)
                    except KubernetesError as error:
                        if isinstance(error, Refused) and not error.transient:
                            raise SandboxUnavailable(
                                f"{failure}: Kubernetes refused: {quote(str(error))}"
                            ) from error
                        self.last_error = error
                        await self.pause()
                    else:
                        if result is not None:
                            return result
        except TimeoutError:
            cause = quote(str(self.last_error)) if self.last_error else "other callers got in first"
            raise SandboxUnavailable(f"{failure} within {FIND_SECONDS:.0f} s: {cause}. Try again.") from None
