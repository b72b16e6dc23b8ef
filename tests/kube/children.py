"""One pass over the children of a parent: first every deletion, then creations and updates kind by kind.

Source: ManageChildren in pkg/controller/common/manage_children.go of Metacontroller v4.17.2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal, TypeAlias

from tests.kube.adoption import with_owner
from tests.kube.deletion import DeleteOptions
from tests.kube.errors import ApiError
from tests.kube.hook_wire import ControllerCrashed, ObjectMap, map_key
from tests.kube.objects import (
    is_terminating,
    labels_of,
    metadata,
    namespace_of,
    owners_of,
    same_json,
    uid_of,
)
from tests.kube.three_way import MergeError, apply_update, with_last_applied

if TYPE_CHECKING:
    from tests.kube.connection import Connection
    from tests.kube.objects import Object
    from tests.kube.resources import Registry

Method = Literal["OnDelete", "InPlace", "Recreate"]
# By (group, kind). Rolling methods are not modelled: they stall for namespaced parents.
Methods: TypeAlias = Mapping[tuple[str, str], Method]
# What one refused request leaves behind; the pass goes on with the next child.
CHILD_ERRORS = (ApiError, MergeError, OSError)


class WrongLabelsError(Exception):
    """A desired child does not match the parent's selector: the whole sync is refused."""


def desired_map(parent: Object, children: list[Object | None]) -> ObjectMap:
    """The answer's children by kind and key; of two with the same key the last wins.

    Raises:
        ControllerCrashed: for a null.
    """
    wanted: ObjectMap = {}
    for child in children:
        if child is None:
            raise ControllerCrashed("nil pointer dereference in UniformObjectMap.Insert")
        meta = {**metadata(child), "namespace": namespace_of(child) or namespace_of(parent)}
        kind = f"{child['kind']}.{child.get('apiVersion', '')}"
        wanted.setdefault(kind, {})[map_key({"metadata": meta})] = {**child, "metadata": meta}
    return wanted


def labelled(desired: ObjectMap, uid: str) -> ObjectMap:
    """The desired children, each with the label by which the parent knows its own.

    Raises:
        WrongLabelsError: when a child names another controller-uid than the parent's.
    """
    return {
        kind: {key: _labelled(child, uid) for key, child in group.items()} for kind, group in desired.items()
    }


def _labelled(child: Object, uid: str) -> Object:
    labels = {"controller-uid": uid, **labels_of(child)}
    if labels["controller-uid"] != uid:
        what = f"{child['kind']} {map_key(child)}"
        raise WrongLabelsError(f"labels on desired child {what} don't match parent selector")
    return {**child, "metadata": {**child["metadata"], "labels": labels}}


def manage(
    connection: Connection,
    registry: Registry,
    reference: Object,
    observed: ObjectMap,
    desired: ObjectMap,
    methods: Methods,
    order: Callable[[list[str]], list[str]] = sorted,
) -> list[Exception]:
    """Make the children what they should be; returns what failed. New ones get `reference` as their owner.

    `order` arranges the keys within a kind, which is random in Metacontroller.
    """
    failures: list[Exception] = []
    for kind in sorted(observed, key=_by_group):
        unwanted = observed[kind].keys() - desired.get(kind, {}).keys()
        for key in order(list(unwanted)):
            with _collecting(failures):
                delete(connection, observed[kind][key])
    for kind in sorted(desired, key=_by_group):
        try:
            name, _, api_version = kind.partition(".")
            resource = registry.by_kind(api_version, name)
        except ApiError as error:
            failures.append(error)
            continue
        method = methods.get((resource.group, resource.kind), "OnDelete")
        for key in order(list(desired[kind])):
            with _collecting(failures):
                apply(connection, observed.get(kind, {}).get(key), desired[kind][key], reference, method)
    return failures


def _by_group(kind: str) -> tuple[str, str, str]:
    """`Deployment.apps/v1` sorts by group, version, kind; the core group is first."""
    name, _, api_version = kind.partition(".")
    group, _, version = api_version.rpartition("/")
    return group, version, name


@contextmanager
def _collecting(failures: list[Exception]) -> Iterator[None]:
    try:
        yield
    except CHILD_ERRORS as error:
        failures.append(error)


def delete(connection: Connection, child: Object) -> None:
    """DELETE with a uid precondition and nothing else; one that terminates is left alone, 404 is fine."""
    if is_terminating(child):
        return
    try:
        connection.delete(child, DeleteOptions(uid=uid_of(child), propagation="Background"))
    except ApiError as error:
        if error.code != 404:
            raise


def apply(
    connection: Connection, observed: Object | None, desired: Object, reference: Object, method: Method
) -> None:
    """Create the child, or do to it what its update strategy says when the merge makes a difference."""
    if observed is None:
        create(connection, desired, reference)
        return
    updated = apply_update(observed, desired)
    if same_json(updated, observed) or is_terminating(observed):
        return
    match method:
        case "OnDelete":
            return
        case "Recreate":
            delete(connection, observed)
        case "InPlace":
            update(connection, updated)


def create(connection: Connection, desired: Object, reference: Object) -> None:
    """POST; that the name is taken (409 AlreadyExists) is nobody's concern."""
    born = with_last_applied(desired, desired)
    if all(owner.get("uid") != reference["uid"] for owner in owners_of(born)):
        born = with_owner(born, reference)
    try:
        connection.create(born)
    except ApiError as error:
        if error.reason != "AlreadyExists":
            raise


def update(connection: Connection, obj: Object) -> None:
    """PUT of the whole object with the observed resourceVersion; a 409 or 404 is nobody's concern."""
    try:
        connection.update(obj)
    except ApiError as error:
        if error.code == 404 or error.reason == "Conflict":
            return
        raise
