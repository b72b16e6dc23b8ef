"""What the doctor looks at, as the API server shows it. No judgement here."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Manifest = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Unread:
    """Stands for a fact that could not be had: `reason` in the API server's words."""

    reason: str


@dataclass(frozen=True, slots=True)
class Facts:
    """Objects of the whole cluster. A kind that the API server does not have is an empty tuple."""

    version: tuple[int, int]
    """Of Kubernetes, major and minor."""
    definitions: tuple[Manifest, ...] | Unread = ()
    """CustomResourceDefinitions."""
    composite_controllers: tuple[Manifest, ...] | Unread = ()
    workloads: tuple[Manifest, ...] | Unread = ()
    """Deployments and StatefulSets."""
    policies: tuple[Manifest, ...] | Unread = ()
    """ValidatingAdmissionPolicies."""
    bindings: tuple[Manifest, ...] | Unread = ()
    """ValidatingAdmissionPolicyBindings."""
    instances: tuple[Manifest, ...] | Unread = field(default=())


def name_of(manifest: Manifest) -> str:
    """`namespace/name`, or the name alone."""
    metadata = manifest["metadata"]
    namespace = metadata.get("namespace")
    return f"{namespace}/{metadata['name']}" if namespace else str(metadata["name"])
