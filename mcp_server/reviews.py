"""Asks the Kubernetes API server who a caller is and what they may do with the instance's MCP server.

The right is `climcpinstances/mcp`, a subresource that exists in RBAC alone: create to call, delete to end a
session, get to read metrics. https://kubernetes.io/docs/reference/access-authn-authz/authentication/
"""

import asyncio
import json
import logging
from collections.abc import Mapping
from typing import Any, Protocol

from cli_mcp.names import GROUP, MCP_SUBRESOURCE, PLURAL
from mcp_server.authentication import Action, AuthenticationUnavailable, Caller, Forbidden, Unauthenticated
from mcp_server.cluster.kubernetes import KubernetesApi, Refused, Resource, Unanswered

_log = logging.getLogger(__name__)

_AUTHENTICATION = "authentication.k8s.io/v1"
_AUTHORIZATION = "authorization.k8s.io/v1"
_VERBS: Mapping[Action, str] = {
    Action.CALL: "create",
    Action.END_SESSION: "delete",
    Action.READ_METRICS: "get",
}
# Who sends no valid credential may still be somebody, where the API server lets anybody in.
_NOBODY = frozenset({"", "system:anonymous"})

Json = Mapping[str, Any]


class Reviewer(Protocol):
    async def review(self, token: str, action: Action) -> Caller:
        """The caller whom `token` belongs to, who may do `action`.

        Raises Unauthenticated, Forbidden and AuthenticationUnavailable.
        """
        ...


class SelfReviews:
    """Asks with the caller's own token, which every authenticated user may: nobody has to grant the server
    anything. `api` must have no client certificate, or the answers would be about the server."""

    def __init__(self, api: KubernetesApi, namespace: str, instance: str) -> None:
        self._api = api
        self._namespace = namespace
        self._instance = instance

    async def review(self, token: str, action: Action) -> Caller:
        """See Reviewer."""
        api = self._api.with_token(token)
        spec = {"resourceAttributes": resource_attributes(self._namespace, self._instance, action)}
        who, may = await asyncio.gather(
            _ask(api, _AUTHENTICATION, "SelfSubjectReview"),
            _ask(api, _AUTHORIZATION, "SelfSubjectAccessReview", spec),
        )
        caller = caller_of(_member(who, "status", "userInfo"))
        check_allowed(_member(may, "status"), action, self._namespace, self._instance)
        return caller


class TokenReviews:
    """Asks with the server's own credential, that of `api`, which takes the ClusterRole
    system:auth-delegator. Tokens must be made for `audience`, and are of no use at the API server itself."""

    def __init__(self, api: KubernetesApi, namespace: str, instance: str) -> None:
        self._api = api
        self._namespace = namespace
        self._instance = instance
        self.audience = f"{GROUP}/{namespace}/{instance}"

    async def review(self, token: str, action: Action) -> Caller:
        """See Reviewer."""
        answer = await self._ask(
            _AUTHENTICATION, "TokenReview", {"token": token, "audiences": [self.audience]}
        )
        user = self._user(_member(answer, "status"))
        caller = caller_of(user)
        spec = {
            "user": user["username"],
            **{name: user[name] for name in ("uid", "groups", "extra") if user.get(name)},
            "resourceAttributes": resource_attributes(self._namespace, self._instance, action),
        }
        answer = await self._ask(_AUTHORIZATION, "SubjectAccessReview", spec)
        check_allowed(_member(answer, "status"), action, self._namespace, self._instance)
        return caller

    def _user(self, status: Json) -> Json:
        # An authenticator that knows no audiences leaves them out: then the token was not made for us.
        if status.get("authenticated") is True and self.audience in (status.get("audiences") or ()):
            return _member(status, "user")
        raise Unauthenticated(
            "This token is not valid here. It has expired, was revoked, or was not made for this server: "
            f"kubectl create token SERVICEACCOUNT --audience={self.audience}"
        )

    async def _ask(self, group_version: str, kind: str, spec: Json) -> Json:
        try:
            return await _ask(self._api, group_version, kind, spec)
        except (Unauthenticated, Forbidden):
            # The answer to the server's own credential, not to the caller's.
            _log.error(
                "the server may not review tokens: bind the ClusterRole system:auth-delegator to its "
                "ServiceAccount, or do without --token-review"
            )
            raise AuthenticationUnavailable(
                "This server is not allowed to check tokens. Its log says what an administrator has to do."
            ) from None


def caller_of(user: Json) -> Caller:
    """Name and uid, since a name can be given again to somebody else. As JSON the two cannot be confused.
    Raises Unauthenticated for nobody."""
    name, uid = user.get("username", ""), user.get("uid", "")
    if not isinstance(name, str) or not isinstance(uid, str) or name in _NOBODY:
        raise Unauthenticated("This token belongs to nobody.")
    return Caller(json.dumps([name, uid], separators=(",", ":")))


def resource_attributes(namespace: str, instance: str, action: Action) -> dict[str, str]:
    return {
        "namespace": namespace,
        "verb": _VERBS[action],
        "group": GROUP,
        "resource": PLURAL,
        "subresource": MCP_SUBRESOURCE,
        "name": instance,
    }


def check_allowed(status: Json, action: Action, namespace: str, instance: str) -> None:
    """Raises Forbidden."""
    if status.get("allowed") is True and status.get("denied") is not True:
        return
    raise Forbidden(
        f"This caller may not use the MCP server of the instance {instance}: {_VERBS[action]} on "
        f"{PLURAL}/{MCP_SUBRESOURCE} is missing. The Role cli-mcp-{instance}-client in the namespace "
        f"{namespace} has it: ask an administrator to bind it."
    )


async def _ask(api: KubernetesApi, group_version: str, kind: str, spec: Json | None = None) -> Json:
    """The review with its status. Raises Unauthenticated, Forbidden and AuthenticationUnavailable."""
    resource = Resource(f"/apis/{group_version}/{kind.lower()}s")
    body: dict[str, Any] = {"apiVersion": group_version, "kind": kind}
    try:
        return await api.create(resource, body if spec is None else {**body, "spec": spec})
    except Refused as error:
        if error.code == 401:
            raise Unauthenticated(
                "This token is not valid: it has expired or was revoked. Get a new one."
            ) from None
        if error.code == 403:
            raise Forbidden("The API server does not let this caller ask what they may do.") from None
        _log.warning("a %s was answered %d", kind, error.code)
    except Unanswered as error:
        _log.warning("a %s was not answered: %s", kind, error)
    raise AuthenticationUnavailable(
        "Who you are cannot be checked now: the Kubernetes API server does not answer. Try again in a moment."
    )


def _member(value: Json, *path: str) -> Json:
    found: Any = value
    for name in path:
        found = found.get(name) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}
