"""Who may do what: users, and the rules of Roles and ClusterRoles that are bound to them.

Pure. Source: k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac and pkg/registry/rbac/validation (escalation).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.kube.objects import name_of, namespace_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tests.kube.objects import Object

MASTERS = "system:masters"
AUTHENTICATED = "system:authenticated"


@dataclass(frozen=True)
class User:
    """Who sends a request; a ServiceAccount is `system:serviceaccount:NAMESPACE:NAME`."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = (AUTHENTICATED,)


ADMIN = User("kubernetes-admin", groups=(MASTERS, AUTHENTICATED))


def service_account(namespace: str, name: str, uid: str = "") -> User:
    """The user that a ServiceAccount's token stands for."""
    groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", AUTHENTICATED)
    return User(f"system:serviceaccount:{namespace}:{name}", uid, groups)


@dataclass(frozen=True)
class Attributes:
    """What an authorizer is asked; `resource` is plural, with `/subresource` where there is one."""

    verb: str
    group: str
    resource: str
    namespace: str = ""
    name: str = ""


@dataclass(frozen=True)
class Bindings:
    """The RBAC objects of the cluster."""

    roles: tuple[Object, ...] = ()
    role_bindings: tuple[Object, ...] = ()
    cluster_roles: tuple[Object, ...] = ()
    cluster_role_bindings: tuple[Object, ...] = ()

    def rules_for(self, user: User, namespace: str) -> Iterator[Object]:
        """Every rule that holds for the user in the namespace (`""`: cluster-wide)."""
        for binding in self.cluster_role_bindings:
            if _binds(binding, user):
                yield from self._rules(binding["roleRef"], "")
        for binding in self.role_bindings:
            if namespace_of(binding) == namespace and _binds(binding, user):
                yield from self._rules(binding["roleRef"], namespace)

    def _rules(self, reference: Object, namespace: str) -> list[Object]:
        pool = self.cluster_roles if reference["kind"] == "ClusterRole" else self.roles
        for role in pool:
            if name_of(role) == reference["name"] and namespace_of(role) in ("", namespace):
                return role.get("rules") or []
        return []


def _binds(binding: Object, user: User) -> bool:
    return any(_is_subject(subject, user, namespace_of(binding)) for subject in binding.get("subjects") or ())


def _is_subject(subject: Object, user: User, namespace: str) -> bool:
    match subject["kind"]:
        case "User":
            return bool(subject["name"] == user.name)
        case "Group":
            return subject["name"] in user.groups
        case _:
            return (
                user.name
                == f"system:serviceaccount:{subject.get('namespace') or namespace}:{subject['name']}"
            )


def is_allowed(user: User, asked: Attributes, bindings: Bindings) -> bool:
    """RBAC only ever allows; what no rule allows is forbidden."""
    if MASTERS in user.groups:
        return True
    return any(_allows(rule, asked) for rule in bindings.rules_for(user, asked.namespace))


def _allows(rule: Object, asked: Attributes) -> bool:
    names = rule.get("resourceNames") or ()
    _, _, subresource = asked.resource.partition("/")
    wildcards = ("*", asked.resource, *((f"*/{subresource}",) if subresource else ()))
    return (
        _contains(rule.get("verbs"), ("*", asked.verb))
        and _contains(rule.get("apiGroups"), ("*", asked.group))
        and _contains(rule.get("resources"), wildcards)
        and (not names or asked.name in names)
    )


def _contains(values: Iterable[str] | None, accepted: tuple[str, ...]) -> bool:
    return any(value in accepted for value in values or ())


def uncovered(user: User, rules: Iterable[Object], namespace: str, bindings: Bindings) -> list[Attributes]:
    """The rights in `rules` that the user does not hold: nobody may grant those (privilege escalation)."""
    return [
        asked for rule in rules for asked in _rights(rule, namespace) if not is_allowed(user, asked, bindings)
    ]


def _rights(rule: Object, namespace: str) -> Iterator[Attributes]:
    for verb in rule.get("verbs") or ():
        for group in rule.get("apiGroups") or ():
            for resource in rule.get("resources") or ():
                for name in rule.get("resourceNames") or ("",):
                    yield Attributes(verb, group, resource, namespace, name)
