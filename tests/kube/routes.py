"""The API server's URLs: which resource, object and subresource a path means.

Pure. Grammar: /api/v1 or /apis/GROUP/VERSION, then [namespaces/NAMESPACE/]PLURAL[/NAME[/SUBRESOURCE]].
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Route:
    """`name` is `""` for the collection; `namespace` is `""` for all namespaces and cluster-scoped kinds."""

    api_version: str
    plural: str
    namespace: str = ""
    name: str = ""
    subresource: str = ""


def parse(path: str) -> Route | None:
    """None when the path means no resource."""
    match path.strip("/").split("/"):
        case ["api", "v1", *rest]:
            return _route("v1", rest)
        case ["apis", group, version, *rest]:
            return _route(f"{group}/{version}", rest)
    return None


def _route(api_version: str, rest: list[str]) -> Route | None:
    match rest:
        case ["namespaces"]:
            return Route(api_version, "namespaces")
        case ["namespaces", name]:
            return Route(api_version, "namespaces", "", name)
        case ["namespaces", name, ("status" | "finalize") as subresource]:
            return Route(api_version, "namespaces", "", name, subresource)
        case ["namespaces", namespace, plural, *tail] if len(tail) <= 2:
            return Route(api_version, plural, namespace, *tail)
        case [plural, *tail] if plural and len(tail) <= 2:
            return Route(api_version, plural, "", *tail)
    return None
