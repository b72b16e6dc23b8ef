"""What etcd is to the API server: objects under keys, one revision for each write, and a log of changes.

Knows nothing of kinds or rules. Objects that go in or come out are shared: they are never changed in place.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from tests.kube import errors

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.kube.objects import Object


class Key(NamedTuple):
    """`kind` is (group, plural); `namespace` is `""` for cluster-scoped objects."""

    kind: tuple[str, str]
    namespace: str
    name: str


@dataclass(frozen=True)
class Change:
    """One write: `before` is None for a creation, `after` carries the last state also of a removal."""

    revision: int
    key: Key
    before: Object | None
    after: Object
    removed: bool = False


class Storage:
    """Keeps the last `log_limit` changes; what is older is compacted, and asking for it is 410 Expired."""

    def __init__(self, log_limit: int = 100_000) -> None:
        self.revision = 1
        self.compacted = 0
        self.listeners: list[Callable[[Change], None]] = []
        self.lock = threading.RLock()
        self._objects: dict[tuple[str, str], dict[Key, Object]] = {}
        self._keys: dict[tuple[str, str], list[Key]] = {}  # sorted; those of kinds that were listed
        self._log: list[Change] = []
        self._log_limit = log_limit

    def get(self, key: Key) -> Object | None:
        return self._objects.get(key.kind, {}).get(key)

    def items(self, kind: tuple[str, str], namespace: str = "", at: int | None = None) -> list[Object]:
        """All objects of a kind, by namespace and name; `at` is an earlier revision.

        Raises:
            ApiError: 410, when that revision is compacted.
        """
        with self.lock:
            if at is None:
                objects = self._objects.get(kind, {})
                keys = self._keys.get(kind)
                if keys is None:
                    keys = self._keys[kind] = sorted(objects)
            else:
                objects = self._objects_at(kind, at)
                keys = sorted(objects)
            return [objects[key] for key in keys if not namespace or key.namespace == namespace]

    def _objects_at(self, kind: tuple[str, str], revision: int) -> dict[Key, Object]:
        objects = dict(self._objects.get(kind, {}))
        for change in reversed(self.since(revision)):
            if change.key.kind != kind:
                continue
            if change.before is None:
                objects.pop(change.key, None)
            else:
                objects[change.key] = change.before
        return objects

    def kinds(self) -> list[tuple[str, str]]:
        return sorted(self._objects)

    def put(self, key: Key, obj: Object) -> Object:
        """Create or replace; returns the object with its new resourceVersion."""
        return self._commit(key, obj, removed=False)

    def remove(self, key: Key, last: Object) -> Object:
        """Delete; `last` is the final state that watchers see."""
        return self._commit(key, last, removed=True)

    def since(self, revision: int) -> list[Change]:
        """Changes after `revision`, oldest first.

        Raises:
            ApiError: 410, when some of them are compacted.
        """
        if revision < self.compacted:
            raise errors.expired(f"too old resource version: {revision} ({self.compacted})")
        start = bisect_right(self._log, revision, key=lambda change: change.revision)
        return self._log[start:]

    def compact(self, revision: int | None = None) -> None:
        """Forget the changes up to `revision` (default: all)."""
        self.compacted = self.revision if revision is None else revision
        self._log = self._log[bisect_right(self._log, self.compacted, key=lambda change: change.revision) :]

    def _commit(self, key: Key, obj: Object, *, removed: bool) -> Object:
        with self.lock:
            after = self._versioned(obj, self.revision + 1)
            objects = self._objects.setdefault(key.kind, {})
            change = Change(self.revision + 1, key, objects.get(key), after, removed)
            if removed or change.before is None:
                self._keys.pop(key.kind, None)
            if removed:
                del objects[key]
            else:
                objects[key] = after
            self._log.append(change)
            if len(self._log) > self._log_limit:
                self.compact(self._log[self._log_limit // 2].revision)
            # Last: whoever reads it without the lock finds the change in the log.
            self.revision = change.revision
        for listener in list(self.listeners):
            listener(change)
        return after

    @staticmethod
    def _versioned(obj: Object, revision: int) -> Object:
        return {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(revision)}}
