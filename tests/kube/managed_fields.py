"""Who set which field, and when: metadata.managedFields for writes that are not server-side applies.

A writer owns the fields that its write changed; whoever owned them before loses them. Simplification: a
list counts as one field. Source: sigs.k8s.io/structured-merge-diff, managedfieldsupdater.go in
k8s.io/apimachinery.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from tests.kube.clock import timestamp
from tests.kube.objects import metadata, same_json

if TYPE_CHECKING:
    from datetime import datetime

    from tests.kube.objects import Object

Path: TypeAlias = tuple[str, ...]

# Written by the API server itself, so nobody owns them.
UNOWNED: frozenset[Path] = frozenset(
    ("metadata", name)
    for name in (
        "name",
        "namespace",
        "uid",
        "resourceVersion",
        "generation",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "managedFields",
        "selfLink",
    )
) | {("apiVersion",), ("kind",)}


def leaves(value: Any, path: Path = ()) -> dict[Path, Any]:
    """Every field that has no fields of its own, with its value."""
    if path in UNOWNED:
        return {}
    if not isinstance(value, dict) or not value:
        return {path: value}
    found: dict[Path, Any] = {}
    for key, item in value.items():
        found.update(leaves(item, (*path, key)))
    return found


def record_write(
    before: Object | None, after: Object, manager: str, subresource: str, api_version: str, now: datetime
) -> list[Object]:
    """The managedFields of `after`, written by `manager` at `now`."""
    old = leaves(before) if before else {}
    new = leaves(after)
    changed = {path for path, value in new.items() if path not in old or not same_json(old[path], value)}
    me = (manager, subresource)
    entries: list[Object] = []
    mine: set[Path] = set(changed)
    previous: Object | None = None
    for entry in metadata(before or {}).get("managedFields") or []:
        owned = _paths(entry["fieldsV1"]) & new.keys()
        if (entry["manager"], entry.get("subresource", "")) == me and entry["operation"] == "Update":
            previous = entry
            mine |= owned
        elif owned - changed:
            entries.append({**entry, "fieldsV1": _tree(owned - changed)})
    if mine:
        written = {
            "manager": manager,
            "operation": "Update",
            "apiVersion": api_version,
            "time": timestamp(now) if changed or previous is None else previous["time"],
            "fieldsType": "FieldsV1",
            "fieldsV1": _tree(mine),
        }
        entries.append({**written, "subresource": subresource} if subresource else written)
    return entries


def _tree(paths: set[Path]) -> Object:
    root: Object = {}
    for path in sorted(paths):
        node = root
        for part in path:
            node = node.setdefault(f"f:{part}", {})
    return root


def _paths(tree: Object, path: Path = ()) -> set[Path]:
    if not tree and path:
        return {path}
    found: set[Path] = set()
    for key, node in tree.items():
        if key.startswith("f:"):
            found |= _paths(node, (*path, key[2:]))
    return found
