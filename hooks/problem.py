"""Why an instance is not Ready: the reasons of its conditions, the gravest first, and their messages."""

from dataclasses import dataclass
from enum import StrEnum


class Reason(StrEnum):
    """In the order in which one of several is shown: what an admin has to mend before what mends itself."""

    SPEC_INVALID = "SpecInvalid"
    NAME_TAKEN = "NameTaken"
    SECRETS_NOT_FOUND = "SecretsNotFound"
    SECRET_KEYS_INVALID = "SecretKeysInvalid"  # noqa: S105 - a reason
    KUBECONFIG_INVALID = "KubeconfigInvalid"
    CREDENTIAL_EXPIRED = "CredentialExpired"
    CREDENTIAL_REFUSED = "CredentialRefused"
    POLICY_WIDENED = "PolicyWidened"  # of which sandboxes that are not isolated may be the consequence
    ISOLATION_NOT_ENFORCED = "IsolationNotEnforced"
    CHILDREN_NOT_READY = "ChildrenNotReady"
    DEPLOYMENT_UNAVAILABLE = "DeploymentUnavailable"
    PATH_BROKEN = "PathBroken"
    TARGET_UNREACHABLE = "TargetUnreachable"
    WARM_POOL_UNHEALTHY = "WarmPoolUnhealthy"
    WARM_POOL_NOT_READY = "WarmPoolNotReady"
    RECONCILING = "Reconciling"
    SESSIONS_CUT_OFF = "SessionsCutOff"
    DEPLOYMENT_DEGRADED = "DeploymentDegraded"
    CREDENTIAL_EXPIRING = "CredentialExpiring"
    NOT_CHECKED = "NotChecked"
    TARGETS_ANSWER = "TargetsAnswer"
    READY = "Ready"


_ORDER = {reason: index for index, reason in enumerate(Reason)}


@dataclass(frozen=True, slots=True)
class Problem:
    """`message` names the object, what is wrong with it and what to do. A `warning` leaves Ready True."""

    reason: Reason
    message: str
    warning: bool = False


def gravest_first(problems: list[Problem]) -> list[Problem]:
    return sorted(problems, key=lambda problem: (_ORDER[problem.reason], problem.message))
