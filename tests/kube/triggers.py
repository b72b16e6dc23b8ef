"""Which events make a sync, and of which parent.

Pure over the cache of parents. Any new revision of a child counts; a change of the parent's status alone
can be ignored. Source: the event handlers in pkg/controller/composite/controller.go of Metacontroller
v4.17.2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.kube.adoption import selector_of
from tests.kube.objects import (
    annotations_of,
    controller_of,
    is_terminating,
    labels_of,
    metadata,
    namespace_of,
    revision_of,
    uid_of,
)
from tests.kube.selectors import match_labels

if TYPE_CHECKING:
    from tests.kube.informer import Informer
    from tests.kube.objects import Object
    from tests.kube.watch import Event


def parent_counts(event: Event, *, ignores_status_changes: bool) -> bool:
    """Whether an event of a parent makes a sync of it."""
    if event.type != "MODIFIED" or event.old is None or not ignores_status_changes:
        return True
    old, new = event.old, event.object
    return is_terminating(new) or (
        metadata(old).get("generation") != metadata(new).get("generation")
        or labels_of(old) != labels_of(new)
        or annotations_of(old) != annotations_of(new)
    )


def parents_of_child(event: Event, parents: Informer) -> list[Object]:
    """The parents that an event of a child makes a sync of: its owner, or whoever may adopt it."""
    child = event.object
    if event.type == "MODIFIED" and event.old is not None and revision_of(event.old) == revision_of(child):
        return []
    controller = controller_of(child)
    if controller is not None:
        parent = parents.get(namespace_of(child), controller["name"])
        return [parent] if parent is not None and uid_of(parent) == controller["uid"] else []
    if event.type == "DELETED" or is_terminating(child):
        return []  # an orphan that goes is nobody's
    candidates = parents.objects(namespace_of(child))
    return [parent for parent in candidates if match_labels(selector_of(parent), labels_of(child))]
