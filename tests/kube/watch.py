"""What a watcher sees of a change: selectors turn a modification into an appearance or a disappearance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from tests.kube.selectors import EVERYTHING, Selection

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tests.kube.objects import Object
    from tests.kube.storage import Change

EventType = Literal["ADDED", "MODIFIED", "DELETED"]


@dataclass(frozen=True)
class Event:
    """`old` is what the watcher had seen before, None when it had not."""

    type: EventType
    object: Object
    old: Object | None
    revision: int


def events(
    changes: Iterable[Change],
    kind: tuple[str, str],
    namespace: str = "",
    selection: Selection = EVERYTHING,
) -> Iterator[Event]:
    """The events of a watch on one kind, in order."""
    for change in changes:
        if change.key.kind != kind or (namespace and change.key.namespace != namespace):
            continue
        seen = change.before if change.before is not None and selection.matches(change.before) else None
        wanted = not change.removed and selection.matches(change.after)
        if wanted:
            yield Event("MODIFIED" if seen else "ADDED", change.after, seen, change.revision)
        elif seen:
            yield Event("DELETED", _last_state(change, seen), seen, change.revision)


def _last_state(change: Change, seen: Object) -> Object:
    """A watcher whose selector stops matching gets what it had seen, under the revision of the change."""
    if change.removed:
        return change.after
    revision = str(change.revision)
    return {**seen, "metadata": {**seen["metadata"], "resourceVersion": revision}}
