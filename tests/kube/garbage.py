"""The garbage collector and the namespace controller: what goes because its owner or its namespace goes.

Both act in the background, one step for each call. Source: pkg/controller/garbagecollector in
k8s.io/kubernetes.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tests.kube.deletion import FOREGROUND, ORPHAN, DeleteOptions
from tests.kube.errors import ApiError
from tests.kube.objects import (
    finalizers_of,
    is_terminating,
    name_of,
    namespace_of,
    owners_of,
    revision_of,
    uid_of,
)
from tests.kube.rbac import MASTERS, User

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.kube.api import Api
    from tests.kube.objects import Object
    from tests.kube.resources import Resource

COLLECTOR = User("system:serviceaccount:kube-system:generic-garbage-collector", groups=(MASTERS,))
NAMESPACES = User("system:serviceaccount:kube-system:namespace-controller", groups=(MASTERS,))


def settle(api: Api, max_steps: int = 100) -> None:
    """Step until nothing is left to collect.

    Raises:
        AssertionError: when that never ends.
    """
    for _ in range(max_steps):
        if not step(api):
            return
    raise AssertionError(f"the garbage collector did not come to rest in {max_steps} steps")


def step(api: Api) -> int:
    """Look at every object once; returns the number of writes."""
    objects = [(kind, obj) for kind in api.registry for obj in api.storage.items(kind.key)]
    written = sum(_collect(api, kind, obj, objects) for kind, obj in objects)
    return written + sum(
        _empty_namespace(api, obj) for obj in api.objects("namespaces") if is_terminating(obj)
    )


def _collect(api: Api, kind: Resource, obj: Object, objects: list[tuple[Resource, Object]]) -> int:
    if is_terminating(obj) and {FOREGROUND, ORPHAN} & set(finalizers_of(obj)):
        return _finish_propagation(api, kind, obj, objects)
    if not owners_of(obj) or is_terminating(obj):
        return 0
    found = [(owner, _owner(api, obj, owner)) for owner in owners_of(obj)]
    solid = [owner for owner, live in found if live and not _waits_for_dependents(live)]
    absent = [owner for owner, live in found if not live]
    if not solid:
        waiting = len(absent) < len(found)
        blocks = waiting and any(_owned_by(other, obj) for _, other in objects)
        options = DeleteOptions(uid=uid_of(obj), propagation="Foreground" if blocks else "Background")
        return _attempt(lambda: api.delete(kind, namespace_of(obj), name_of(obj), options, user=COLLECTOR))
    if absent:
        return _write_metadata(
            api, kind, obj, ownerReferences=[owner for owner in owners_of(obj) if owner not in absent]
        )
    return 0


def _owner(api: Api, child: Object, reference: Object) -> Object | None:
    """An owner is looked up in the child's own namespace: one in another counts as absent."""
    try:
        kind = api.registry.by_kind(reference["apiVersion"], reference["kind"])
    except ApiError:
        return None
    live = api.find(kind.qualified, namespace_of(child), reference["name"])
    return live if live and uid_of(live) == reference["uid"] else None


def _waits_for_dependents(owner: Object) -> bool:
    return is_terminating(owner) and FOREGROUND in finalizers_of(owner)


def _owned_by(child: Object, owner: Object) -> bool:
    return any(reference["uid"] == uid_of(owner) for reference in owners_of(child))


def _blocks(child: Object, owner: Object) -> bool:
    return any(it["uid"] == uid_of(owner) and it.get("blockOwnerDeletion") for it in owners_of(child))


def _finish_propagation(
    api: Api, kind: Resource, owner: Object, objects: list[tuple[Resource, Object]]
) -> int:
    """Take the finalizer off once dependents are gone (foreground) or set free (orphan)."""
    dependents = [
        (it, child) for it, child in objects if _owned_by(child, owner) and _is_stored(api, it, child)
    ]
    if ORPHAN in finalizers_of(owner):
        freed = sum(
            _write_metadata(
                api,
                it,
                child,
                ownerReferences=[ref for ref in owners_of(child) if ref["uid"] != uid_of(owner)],
            )
            for it, child in dependents
        )
        return freed + _drop_finalizer(api, kind, owner, ORPHAN)
    if any(_blocks(child, owner) for _, child in dependents):
        return 0
    return _drop_finalizer(api, kind, owner, FOREGROUND)


def _is_stored(api: Api, kind: Resource, obj: Object) -> bool:
    live = api.find(kind.qualified, namespace_of(obj), name_of(obj))
    return live is not None and uid_of(live) == uid_of(obj)


def _drop_finalizer(api: Api, kind: Resource, obj: Object, finalizer: str) -> int:
    return _write_metadata(api, kind, obj, finalizers=[it for it in finalizers_of(obj) if it != finalizer])


def _write_metadata(api: Api, kind: Resource, obj: Object, **fields: list[object]) -> int:
    patch = {"metadata": {"uid": uid_of(obj), "resourceVersion": revision_of(obj), **fields}}
    return _attempt(lambda: api.patch(kind, namespace_of(obj), name_of(obj), patch, user=COLLECTOR))


def _attempt(request: Callable[[], object]) -> int:
    """A conflict or an object that is gone is looked at again in the next step."""
    try:
        request()
    except ApiError as error:
        if error.code in (404, 409):
            return 0
        raise
    return 1


def _empty_namespace(api: Api, namespace: Object) -> int:
    """Delete what is left in a terminating namespace; when nothing is, the namespace goes."""
    name = name_of(namespace)
    left = [
        (kind, obj) for kind in api.registry if kind.namespaced for obj in api.storage.items(kind.key, name)
    ]
    if not left:
        return _attempt(lambda: api.finalize_namespace(name, user=NAMESPACES))
    options = DeleteOptions(propagation="Background")
    return sum(
        _attempt(partial(api.delete, kind, name, name_of(obj), options, user=NAMESPACES))
        for kind, obj in left
        if not is_terminating(obj)
    )
