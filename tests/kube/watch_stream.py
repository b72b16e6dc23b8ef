"""One watch request: what is there, what changes, until its time is over.

Source: the watch handler and the watch cache in k8s.io/apiserver. Only the last event is a bookmark, when
bookmarks are wanted; a real server sends one a minute.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.kube.errors import ApiError, bad_request
from tests.kube.watch import events

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from tests.kube.objects import Object
    from tests.kube.resources import Resource
    from tests.kube.selectors import Selection
    from tests.kube.storage import Storage

WATCH_SECONDS = 1800.0
# Ends the list that a watch begins with, when the client asked for one (sendInitialEvents).
INITIAL_EVENTS_END = "k8s.io/initial-events-end"


def is_true(text: str | None) -> bool:
    """What Go's ParseBool takes; some clients write `True`."""
    return text in ("1", "t", "T", "true", "True", "TRUE")


@dataclass(frozen=True)
class Wanted:
    """`since` 0 begins with what is there."""

    resource: Resource
    namespace: str
    selection: Selection
    since: int
    seconds: float
    streams_list: bool
    bookmarks: bool

    @classmethod
    def from_query(
        cls, resource: Resource, namespace: str, selection: Selection, query: Mapping[str, str]
    ) -> Wanted:
        """Raises 400 for a revision or a timeout that is no number."""
        try:
            since = int(query.get("resourceVersion") or 0)
            seconds = float(query.get("timeoutSeconds") or WATCH_SECONDS)
        except ValueError as error:
            raise bad_request(f"invalid watch options: {error}") from error
        streams_list = is_true(query.get("sendInitialEvents"))
        bookmarks = is_true(query.get("allowWatchBookmarks"))
        return cls(resource, namespace, selection, since, seconds, streams_list, bookmarks)


async def stream(storage: Storage, wanted: Wanted, woken: asyncio.Event) -> AsyncIterator[Object]:
    """The events as they go over the wire; `woken` is set after every change of the store."""
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + wanted.seconds
    since = wanted.since
    if not since or wanted.streams_list:
        with storage.lock:
            since = storage.revision
            present = storage.items(wanted.resource.key, wanted.namespace)
        for obj in filter(wanted.selection.matches, present):
            yield {"type": "ADDED", "object": obj}
    if wanted.streams_list:
        yield _bookmark(wanted.resource, since, annotations={INITIAL_EVENTS_END: "true"})
    while loop.time() < ends_at:
        woken.clear()
        try:
            changes = storage.since(since)
        except ApiError as error:
            yield {"type": "ERROR", "object": error.status()}
            return
        for event in events(changes, wanted.resource.key, wanted.namespace, wanted.selection):
            yield {"type": event.type, "object": event.object}
        if changes:
            since = changes[-1].revision
        with suppress(TimeoutError):
            await asyncio.wait_for(woken.wait(), ends_at - loop.time())
    if wanted.bookmarks:
        yield _bookmark(wanted.resource, since)


def _bookmark(resource: Resource, revision: int, **metadata: Any) -> Object:
    metadata["resourceVersion"] = str(revision)
    marked = {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": metadata}
    return {"type": "BOOKMARK", "object": marked}
