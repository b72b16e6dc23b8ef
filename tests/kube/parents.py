"""What a sync writes to the parent itself: the finalizer before everything else, the status after it.

Source: pkg/controller/common/finalizer and updateParentStatus in pkg/controller/composite of Metacontroller
v4.17.2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.kube.deletion import FOREGROUND, ORPHAN
from tests.kube.objects import finalizers_of, is_terminating, metadata, same_json

if TYPE_CHECKING:
    from tests.kube.connection import Connection
    from tests.kube.objects import Object


def sync_finalizer(connection: Connection, parent: Object, name: str, *, wanted: bool) -> Object:
    """The parent with or without the finalizer; it is never added to one that terminates."""
    present = name in finalizers_of(parent)
    if present == wanted or (wanted and is_terminating(parent)):
        return parent
    return set_finalizer(connection, parent, name, present=wanted)


def set_finalizer(connection: Connection, parent: Object, name: str, *, present: bool) -> Object:
    """Add or remove it on the live object; returns that."""

    def change(live: Object) -> Object | None:
        if (name in finalizers_of(live)) == present:
            return None
        others = [it for it in finalizers_of(live) if it != name]
        return {
            **live,
            "metadata": {**live["metadata"], "finalizers": [*others, name] if present else others},
        }

    return connection.read_modify_write(parent, change)


def manages_children(parent: Object, finalizer: str) -> bool:
    """Those of a terminating parent only while it has our finalizer and none of the garbage collector."""
    if not is_terminating(parent):
        return True
    finalizers = finalizers_of(parent)
    return finalizer in finalizers and not {FOREGROUND, ORPHAN} & set(finalizers)


def write_status(connection: Connection, parent: Object, status: Object) -> None:
    """Live GET, and a PUT when the status differs; observedGeneration is that of the cached parent."""
    wanted = {**status, "observedGeneration": metadata(parent).get("generation", 0)}

    def change(live: Object) -> Object | None:
        return None if same_json(live.get("status"), wanted) else {**live, "status": wanted}

    connection.read_modify_write(parent, change, "status")
