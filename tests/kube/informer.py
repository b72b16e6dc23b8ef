"""A controller's cache of one kind, filled by a watch that may lag as long as a test wants.

The cache is always a state that the store once had: it is late, never wrong.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.kube.objects import name_of, namespace_of
from tests.kube.watch import Event, events

if TYPE_CHECKING:
    from tests.kube.objects import Object
    from tests.kube.resources import Resource
    from tests.kube.storage import Storage


class Informer:
    """`held` stops the watch: `deliver` then does nothing until it is released."""

    def __init__(self, storage: Storage, resource: Resource) -> None:
        self.resource = resource
        self.held = False
        self._storage = storage
        self._seen = 0
        self._objects: dict[tuple[str, str], Object] = {}

    def get(self, namespace: str, name: str) -> Object | None:
        return self._objects.get((namespace, name))

    def objects(self, namespace: str = "") -> list[Object]:
        """By namespace and name; all namespaces when it is `""`."""
        return [
            obj for (where, _), obj in sorted(self._objects.items()) if not namespace or where == namespace
        ]

    def start(self) -> list[Event]:
        """The first list: everything appears."""
        self._seen = self._storage.revision
        found = self._storage.items(self.resource.key)
        self._objects = {(namespace_of(obj), name_of(obj)): obj for obj in found}
        return [Event("ADDED", obj, None, self._seen) for obj in found]

    def deliver(self, limit: int | None = None) -> list[Event]:
        """Catch up with the store, by at most `limit` events; returns them."""
        if self.held:
            return []
        changes = self._storage.since(self._seen)
        delivered: list[Event] = []
        for event in events(changes, self.resource.key):
            if limit is not None and len(delivered) == limit:
                return delivered
            self._apply(event)
            delivered.append(event)
        if changes:
            self._seen = changes[-1].revision
        return delivered

    def _apply(self, event: Event) -> None:
        key = (namespace_of(event.object), name_of(event.object))
        if event.type == "DELETED":
            self._objects.pop(key, None)
        else:
            self._objects[key] = event.object
        self._seen = event.revision
