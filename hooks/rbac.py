"""The rights of Metacontroller, derived from what it has to do: `python -m hooks.rbac` prints them.

Metacontroller watches whole clusters, so they are a ClusterRole. It must itself hold what the Roles among the
children grant (https://kubernetes.io/docs/reference/access-authn-authz/rbac/, privilege escalation
prevention), and nothing beyond both.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator

import yaml

from cli_mcp import names
from hooks.preview import preview_settled
from hooks.settings import Settings
from hooks.wire import CHILD_KINDS, ENDPOINT_SLICE, Manifest

ROLE_NAME = "cli-mcp-metacontroller"
_CHILD_VERBS = ("create", "delete", "get", "list", "update", "watch")
_OWN_RULES = (
    # Its own configuration, and what it looks at whoever it works for.
    ("metacontroller.k8s.io", "compositecontrollers", ("list", "watch")),
    ("metacontroller.k8s.io", "decoratorcontrollers", ("list", "watch")),
    ("metacontroller.k8s.io", "controllerrevisions", ("list", "watch")),
    ("apiextensions.k8s.io", "customresourcedefinitions", ("list", "watch")),
    ("", "namespaces", ("list", "watch")),
    ("", "events", ("create", "patch")),
    # The instances: update sets and removes the finalizer.
    (names.GROUP, names.PLURAL, ("get", "list", "update", "watch")),
    (names.GROUP, f"{names.PLURAL}/status", ("update",)),
    # For owner references that block deletion, where OwnerReferencesPermissionEnforcement is on (OpenShift).
    (names.GROUP, f"{names.PLURAL}/finalizers", ("update",)),
    # Related objects that are no kind of child.
    (ENDPOINT_SLICE.group, ENDPOINT_SLICE.resource, ("list", "watch")),
)
# An instance with everything, so that its Roles grant whatever the Roles of an instance can grant.
_FULL_INSTANCE: Manifest = {
    "apiVersion": names.API_VERSION,
    "kind": names.KIND,
    "metadata": {"name": "any"},
    "spec": {
        "sandbox": {"workspace": {"persistent": True}},
        "proxy": {"targets": [{"type": "kubernetes"}]},
        "ssh": {"routes": [{"username": "any", "authorizedKeysSecret": "any"}]},
    },
}


def metacontroller_role() -> Manifest:
    """The ClusterRole, resources with the same verbs in one rule."""
    verbs: dict[tuple[str, str], set[str]] = defaultdict(set)
    for group, resource, allowed in (*_OWN_RULES, *_child_rules(), *_granted_rules()):
        verbs[group, resource] |= set(allowed)
    grouped: dict[tuple[str, tuple[str, ...]], list[str]] = defaultdict(list)
    for (group, resource), allowed_verbs in sorted(verbs.items()):
        grouped[group, tuple(sorted(allowed_verbs))].append(resource)
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": ROLE_NAME},
        "rules": [
            {"apiGroups": [group], "resources": resources, "verbs": list(allowed)}
            for (group, allowed), resources in sorted(grouped.items())
        ],
    }


def as_yaml() -> str:
    head = "# Made by `make rbac` from the kinds of children and from what their Roles grant.\n"
    return head + yaml.safe_dump(metacontroller_role(), sort_keys=False)


def _child_rules() -> Iterator[tuple[str, str, Iterable[str]]]:
    return ((kind.group, kind.resource, _CHILD_VERBS) for kind in CHILD_KINDS)


def _granted_rules() -> Iterator[tuple[str, str, Iterable[str]]]:
    # resourceNames are names of one instance; Metacontroller grants for all of them.
    for child in preview_settled(_FULL_INSTANCE, Settings(image="any", sandbox_image="any")).children:
        if child["kind"] == "Role":
            for rule in child["rules"]:
                for group in rule["apiGroups"]:
                    for resource in rule["resources"]:
                        yield group, resource, rule["verbs"]


if __name__ == "__main__":
    print(as_yaml(), end="")
