"""List and watch: keeps somebody informed about a selection of objects, and knows how old the news is.

Source of the protocol: kubernetes.io/docs/reference/using-api/api-concepts, "Efficient detection of changes".
Each watch is short: only its punctual end shows that a silent connection is not a dead one.
"""

import asyncio
import logging
import random
from collections.abc import Callable
from contextlib import aclosing
from typing import Protocol

from mcp_server.cluster.kubernetes import KubernetesApi, KubernetesError, Object, Refused, Resource, TooOld

logger = logging.getLogger(__name__)

WATCH_SECONDS = 15
_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 5.0


class Audience(Protocol):
    def listed(self, items: list[Object], revision: str) -> None:
        """All there is at `revision`."""
        ...

    def changed(self, event: str, item: Object) -> None:
        """`event` is ADDED, MODIFIED or DELETED."""
        ...


class Watch:
    """`on_recovery` is called when news comes again after a watch has failed."""

    def __init__(
        self,
        api: KubernetesApi,
        resource: Resource,
        audience: Audience,
        *,
        labels: str = "",
        fields: str = "",
        watch_seconds: int = WATCH_SECONDS,
        on_recovery: Callable[[], None] = lambda: None,
    ) -> None:
        self._api = api
        self._resource = resource
        self._audience = audience
        self._labels = labels
        self._fields = fields
        self._watch_seconds = watch_seconds
        self._on_recovery = on_recovery
        self._revision = ""
        self._heard_at: float | None = None
        self._pause_seconds = _FIRST_PAUSE_SECONDS
        self._failed = False

    @property
    def synced(self) -> bool:
        return self._heard_at is not None

    def stale_seconds(self) -> float:
        """How long ago the API server last said something; infinite before the first list."""
        if self._heard_at is None:
            return float("inf")
        return asyncio.get_running_loop().time() - self._heard_at

    async def run(self) -> None:
        """For ever. Failures are logged and tried again, later each time."""
        while True:
            try:
                if not self._revision:
                    await self._list()
                await self._watch()
            except TooOld:
                self._revision = ""
                await asyncio.sleep(_FIRST_PAUSE_SECONDS)
            except KubernetesError as error:
                self._failed = True
                seconds = self._next_pause(error)
                logger.warning("watch of %s: %s; again in %.1f s", self._resource.path, error, seconds)
                await asyncio.sleep(seconds)

    async def _list(self) -> None:
        listing = await self._api.list(self._resource, self._labels, fields=self._fields)
        self._audience.listed(listing.items, listing.revision)
        self._revision = listing.revision
        self._heard()

    async def _watch(self) -> None:
        events = self._api.watch(
            self._resource,
            self._revision,
            labels=self._labels,
            fields=self._fields,
            seconds=self._watch_seconds,
        )
        async with aclosing(events):
            async for event, item in events:
                self._heard()
                if not event:
                    continue
                if event != "BOOKMARK":
                    self._audience.changed(event, item)
                self._revision = item["metadata"]["resourceVersion"]
        self._heard()

    def _heard(self) -> None:
        self._heard_at = asyncio.get_running_loop().time()
        self._pause_seconds = _FIRST_PAUSE_SECONDS
        if self._failed:
            self._failed = False
            self._on_recovery()

    def _next_pause(self, error: KubernetesError) -> float:
        asked = error.retry_after_seconds if isinstance(error, Refused) else None
        pause = self._pause_seconds * random.uniform(0.5, 1.0)  # noqa: S311 - to spread replicas, not to hide
        self._pause_seconds = min(2 * self._pause_seconds, _LONGEST_PAUSE_SECONDS)
        return max(pause, asked or 0.0)
