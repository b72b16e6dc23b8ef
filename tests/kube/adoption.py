"""Which objects belong to a parent: keep, adopt, release or ignore.

Pure. Source: ClaimObject in pkg/third_party/kubernetes/controller_ref_manager.go of Metacontroller v4.17.2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

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
    from tests.kube.resources import Resource

Verdict = Literal["owned", "adopt", "release", "ignore"]


def judge(parent: Object, child: Object, selector: tuple[Requirement, ...]) -> Verdict:
    """What a sync of the parent does with an object of a child kind in its namespace."""
    matches = match_labels(selector, labels_of(child))
    controller = controller_of(child)
    if controller is not None:
        if controller["uid"] != uid_of(parent):
            return "ignore"
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
