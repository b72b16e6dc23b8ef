"""What the API server says about itself: versions, groups and resources.

Pure. Formats: metav1.APIVersions, APIGroupList, APIGroup and APIResourceList.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.kube.reviews import REVIEWS

if TYPE_CHECKING:
    from tests.kube.objects import Object
    from tests.kube.resources import Registry, Resource

VERSION = {"major": "1", "minor": "34", "gitVersion": "v1.34.0+memory", "platform": "linux/amd64"}
_VERBS = ["create", "delete", "get", "list", "patch", "update", "watch"]


def describe(path: str, registry: Registry) -> Object | None:
    """The answer to a GET of a discovery path, None for any other path."""
    parts = [part for part in path.split("/") if part]
    match parts:
        case ["version"]:
            return VERSION
        case ["api"]:
            return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
        case ["api", "v1"]:
            return _resources("", "v1", registry)
        case ["apis"]:
            groups = [_group(name, registry) for name in _group_names(registry)]
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
        case ["apis", group] if group in _group_names(registry):
            return {"kind": "APIGroup", "apiVersion": "v1", **_group(group, registry)}
        case ["apis", group, version] if version in _versions(group, registry):
            return _resources(group, version, registry)
    return None


def _group_names(registry: Registry) -> list[str]:
    return sorted({it.group for it in registry if it.group} | {group for group, _ in REVIEWS})


def _versions(group: str, registry: Registry) -> list[str]:
    served = {it.version for it in registry if it.group == group}
    return sorted(served | ({"v1"} if any(group == it for it, _ in REVIEWS) else set()))


def _group(name: str, registry: Registry) -> Object:
    versions = [{"groupVersion": f"{name}/{it}", "version": it} for it in _versions(name, registry)]
    return {"name": name, "versions": versions, "preferredVersion": versions[0]}


def _resources(group: str, version: str, registry: Registry) -> Object:
    found = [entry for it in registry if (it.group, it.version) == (group, version) for entry in _entries(it)]
    reviews = [
        {"name": plural, "singularName": kind.lower(), "namespaced": False, "kind": kind, "verbs": ["create"]}
        for (review_group, plural), kind in REVIEWS.items()
        if review_group == group
    ]
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": f"{group}/{version}" if group else version,
        "resources": [*found, *reviews],
    }


def _entries(resource: Resource) -> list[Object]:
    entry: Object = {
        "name": resource.plural,
        "singularName": resource.kind.lower(),
        "namespaced": resource.namespaced,
        "kind": resource.kind,
        "verbs": _VERBS,
        "shortNames": list(resource.short_names),
    }
    if not resource.has_status:
        return [entry]
    verbs = ["get", "patch", "update"]
    return [
        entry,
        {**entry, "name": f"{resource.plural}/status", "verbs": verbs, "singularName": "", "shortNames": []},
    ]
