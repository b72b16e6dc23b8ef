"""The kinds that the API server serves: a table, and what a CustomResourceDefinition adds to it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.kube import errors

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tests.kube.objects import Object


@dataclass(frozen=True)
class Resource:
    """One kind under one API version.

    `counts_generation`: metadata.generation exists and counts changes outside metadata and status.
    `returns_deleted`: the answer to a DELETE that removes is the object, not a Status.
    `custom_schema`: the OpenAPI v3 schema of a custom resource, None for a built-in kind.
    """

    group: str
    version: str
    plural: str
    kind: str
    short_names: tuple[str, ...] = ()
    namespaced: bool = True
    has_status: bool = False
    counts_generation: bool = False
    returns_deleted: bool = False
    is_custom: bool = False
    custom_schema: Object | None = field(default=None, compare=False, hash=False)

    @property
    def api_version(self) -> str:
        """`v1`, `apps/v1`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def qualified(self) -> str:
        """`pods`, `deployments.apps`: how messages and `kubectl` name it."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def key(self) -> tuple[str, str]:
        """What identifies the kind in storage."""
        return (self.group, self.plural)

    @property
    def children_key(self) -> str:
        """`Pod.v1`, `Deployment.apps/v1`: how Metacontroller names it in a hook request."""
        return f"{self.kind}.{self.api_version}"


BUILT_IN = (
    Resource(
        "", "v1", "namespaces", "Namespace", ("ns",), namespaced=False, has_status=True, returns_deleted=True
    ),
    Resource("", "v1", "nodes", "Node", ("no",), namespaced=False, has_status=True),
    Resource("", "v1", "pods", "Pod", ("po",), has_status=True, counts_generation=True, returns_deleted=True),
    Resource("", "v1", "services", "Service", ("svc",), has_status=True, returns_deleted=True),
    Resource("", "v1", "endpoints", "Endpoints", ("ep",)),
    Resource("", "v1", "configmaps", "ConfigMap", ("cm",)),
    Resource("", "v1", "secrets", "Secret"),
    Resource("", "v1", "serviceaccounts", "ServiceAccount", ("sa",), returns_deleted=True),
    Resource(
        "",
        "v1",
        "persistentvolumeclaims",
        "PersistentVolumeClaim",
        ("pvc",),
        has_status=True,
        returns_deleted=True,
    ),
    Resource("", "v1", "events", "Event", ("ev",)),
    Resource("apps", "v1", "deployments", "Deployment", ("deploy",), has_status=True, counts_generation=True),
    Resource("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice", counts_generation=True),
    Resource(
        "networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy", ("netpol",), counts_generation=True
    ),
    Resource(
        "policy",
        "v1",
        "poddisruptionbudgets",
        "PodDisruptionBudget",
        ("pdb",),
        has_status=True,
        counts_generation=True,
    ),
    Resource("coordination.k8s.io", "v1", "leases", "Lease"),
    Resource("rbac.authorization.k8s.io", "v1", "roles", "Role"),
    Resource("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding"),
    Resource("rbac.authorization.k8s.io", "v1", "clusterroles", "ClusterRole", namespaced=False),
    Resource(
        "rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding", namespaced=False
    ),
    Resource(
        "apiextensions.k8s.io",
        "v1",
        "customresourcedefinitions",
        "CustomResourceDefinition",
        ("crd", "crds"),
        namespaced=False,
        has_status=True,
        counts_generation=True,
    ),
)


def custom_resources(definition: Object) -> list[Resource]:
    """The served versions of a CustomResourceDefinition (apiextensions.k8s.io/v1)."""
    spec = definition["spec"]
    names = spec["names"]
    return [
        Resource(
            group=spec["group"],
            version=version["name"],
            plural=names["plural"],
            kind=names["kind"],
            short_names=tuple(names.get("shortNames") or ()),
            namespaced=spec["scope"] == "Namespaced",
            has_status="status" in (version.get("subresources") or {}),
            counts_generation=True,
            is_custom=True,
            custom_schema=(version.get("schema") or {}).get("openAPIV3Schema"),
        )
        for version in spec["versions"]
        if version.get("served", True)
    ]


class Registry:
    """Finds a kind by the names that requests use for it; raises 404 when it is not served."""

    def __init__(self, resources: Iterable[Resource] = BUILT_IN) -> None:
        self._by_plural = {(it.group, it.version, it.plural): it for it in resources}

    def __iter__(self) -> Iterator[Resource]:
        return iter(self._by_plural.values())

    def add(self, resources: Iterable[Resource]) -> None:
        self._by_plural.update({(it.group, it.version, it.plural): it for it in resources})

    def remove(self, resources: Iterable[Resource]) -> None:
        for it in resources:
            self._by_plural.pop((it.group, it.version, it.plural), None)

    def by_plural(self, api_version: str, plural: str) -> Resource:
        """`("apps/v1", "deployments")`."""
        group, _, version = api_version.rpartition("/")
        found = self._by_plural.get((group, version, plural))
        if found is None:
            raise errors.no_such_path()
        return found

    def by_kind(self, api_version: str, kind: str) -> Resource:
        """`("apps/v1", "Deployment")`, as an object names itself."""
        for it in self._by_plural.values():
            if it.api_version == api_version and it.kind == kind:
                return it
        raise errors.no_such_path()

    def by_name(self, name: str) -> Resource:
        """`pods` or `deployments.apps`, as kubectl names it."""
        for it in self._by_plural.values():
            if it.qualified == name:
                return it
        raise errors.no_such_path()
