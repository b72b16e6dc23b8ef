"""Which objects belong to a parent: keep, adopt, release or ignore.

Source: pkg/third_party/kubernetes/controller_ref_manager.go and pkg/dynamic/controllerref of Metacontroller
v4.17.2.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Literal

from tests.kube.errors import ApiError
from tests.kube.objects import (
    Object,
    controller_of,
    is_terminating,
    labels_of,
    metadata,
    name_of,
    owners_of,
    uid_of,
)
from tests.kube.selectors import Requirement, match_labels

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.kube.connection import Connection
    from tests.kube.resources import Resource

Verdict = Literal["owned", "adopt", "release", "ignore"]


def selector_of(parent: Object) -> tuple[Requirement, ...]:
    """With generateSelector, children are those with the parent's uid as their label."""
    return (Requirement("controller-uid", "In", frozenset((uid_of(parent),))),)


def judge(parent: Object, child: Object) -> Verdict:
    """What a sync of the parent does with an object of a child kind in its namespace."""
    controller = controller_of(child)
    if controller is not None and controller["uid"] != uid_of(parent):
        return "ignore"
    matches = match_labels(selector_of(parent), labels_of(child))
    if controller is not None:
        if matches:
            return "owned"
        return "ignore" if is_terminating(parent) else "release"
    if is_terminating(parent) or is_terminating(child) or not matches:
        return "ignore"
    return "adopt"


def controller_reference(parent_kind: Resource, parent: Object) -> Object:
    """What every child gets."""
    return {
        "apiVersion": parent_kind.api_version,
        "kind": parent_kind.kind,
        "name": name_of(parent),
        "uid": uid_of(parent),
        "controller": True,
        "blockOwnerDeletion": True,
    }


def with_owner(child: Object, reference: Object) -> Object:
    """The child with the reference; one to the same uid is replaced."""
    others = [owner for owner in owners_of(child) if owner["uid"] != reference["uid"]]
    return {**child, "metadata": {**metadata(child), "ownerReferences": [*others, reference]}}


def without_owner(child: Object, uid: str) -> Object:
    others = [owner for owner in owners_of(child) if owner["uid"] != uid]
    return {**child, "metadata": {**metadata(child), "ownerReferences": others}}


def claim(
    connection: Connection, parent_kind: Resource, parent: Object, candidates: list[Object]
) -> list[Object]:
    """The candidates of one kind that are the parent's; one just adopted is as it was in the cache.

    Raises:
        ApiError: when one can neither be adopted nor released; the first such ends the sync.
        OSError: when there is something to adopt, and the parent is not what the cache says.
    """
    claimed: list[Object] = []
    may_adopt = False
    for child in candidates:
        match judge(parent, child):
            case "owned":
                claimed.append(child)
            case "adopt":
                may_adopt = may_adopt or _recheck(connection, parent)
                reference = controller_reference(parent_kind, parent)
                if _update_owners(connection, child, partial(with_owner, reference=reference)):
                    claimed.append(child)
            case "release":
                _update_owners(connection, child, partial(without_owner, uid=uid_of(parent)))
    return claimed


def _recheck(connection: Connection, parent: Object) -> bool:
    live = connection.get(parent)
    if uid_of(live) != uid_of(parent) or is_terminating(live):
        raise OSError(f"{name_of(parent)} has just been deleted")
    return True


def _update_owners(connection: Connection, child: Object, change: Callable[[Object], Object]) -> bool:
    """False when the child is gone."""
    try:
        connection.read_modify_write(child, change)
    except ApiError as error:
        if error.code == 404:
            return False
        raise
    return True
