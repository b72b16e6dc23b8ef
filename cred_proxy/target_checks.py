"""Whether each target would answer a call: asked like a call, by name, with verified TLS and the credential.

A Kubernetes API server is asked who the credential belongs to, which every identity may ask. Of other hosts
any answer will do.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from cli_mcp.path_report import TargetKind, TargetState
from cli_mcp.proxy_config import UpstreamConfig
from cred_proxy.refusal import Reason, Refusal
from cred_proxy.request import Forward, RequestHead, host_field, judge_request
from cred_proxy.routes import KubernetesRoute, Route
from cred_proxy.upstream import FAILURES, Upstream, explain

CHECK_SECONDS = 60.0
AGAIN_SECONDS = 5.0
"""After a failure: only a second one in a row counts, and what has recovered is noticed soon."""
_ANSWER_SECONDS = 10.0
_AT_ONCE = 8

Ask = Callable[[Route, Forward, bytes], Awaitable[int | Refusal]]
"""Sends a request to a target: the status of its answer, or why there was none."""

# https://kubernetes.io/docs/reference/kubernetes-api/authentication-resources/self-subject-review-v1/
_WHO_AM_I = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
_WHO_AM_I_BODY = b'{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}'
_USER_AGENT = ("User-Agent", "cli-mcp-proxy/reachability")

_REMEDIES = {
    Reason.UNRESOLVED: "correct the name, or the DNS of the cluster",
    Reason.UNREACHABLE: "see whether it runs, and whether firewalls and NetworkPolicies let the proxy pass",
    Reason.UNTRUSTED: "give the authority of its certificate: certificate-authority-data in the kubeconfig, "
    "or spec.proxy.upstream.caBundle",
    Reason.UPSTREAM_TIMEOUT: "see whether it runs, and whether firewalls drop what the proxy sends",
    Reason.UPSTREAM_BROKEN: "see whether it speaks HTTPS at this port",
    Reason.UPSTREAM_PROXY: "see spec.proxy.upstream.httpProxy, and what that proxy allows",
}


@dataclass(frozen=True, slots=True)
class Question:
    """What a target is asked."""

    forward: Forward
    body: bytes = b""


def question(route: Route) -> Question:
    """The request that shows whether `route` works, judged like any request of a sandbox."""
    fields = [("Host", host_field(route.endpoint)), _USER_AGENT, ("Accept", "application/json")]
    if isinstance(route, KubernetesRoute):
        framing = [("Content-Type", "application/json"), ("Content-Length", str(len(_WHO_AM_I_BODY)))]
        head = RequestHead("POST", route.server.path + _WHO_AM_I, (1, 1), fields + framing)
        body = _WHO_AM_I_BODY
    else:
        head, body = RequestHead("HEAD", "/", (1, 1), fields), b""
    forward = judge_request(head, route)
    assert isinstance(forward, Forward), "the proxy refuses its own question"
    return Question(forward, body)


def state_of(route: Route, answer: int | Refusal) -> TargetState:
    """What `answer` to the question says of the target."""
    endpoint = str(route.endpoint)
    if isinstance(answer, Refusal):
        remedy = _REMEDIES.get(answer.reason, "see the log of the proxy")
        problem = f"{answer.answer.phrase}: {answer.detail}"
        return TargetState(endpoint=endpoint, kind=_kind(route), problem=problem, remedy=remedy)
    if not isinstance(route, KubernetesRoute):
        return TargetState(endpoint=endpoint, kind=TargetKind.ALLOWLIST)
    if answer == 401:
        return TargetState(
            endpoint=endpoint,
            kind=TargetKind.KUBERNETES,
            credential_refused=True,
            problem=f"{endpoint} refuses the token of the kubeconfig (401)",
            remedy="put a kubeconfig with a valid token into the Secret; it is taken over within seconds",
        )
    # 403 and 404 come from clusters before 1.28, which do not know the question: who asks is known to them.
    problem = f"{endpoint} answers {answer}" if answer >= 500 else ""
    remedy = "see whether that API server is healthy" if problem else ""
    return TargetState(endpoint=endpoint, kind=TargetKind.KUBERNETES, problem=problem, remedy=remedy)


class TargetChecks:
    """Asks all targets of `routes`, now and then, for as long as `run` runs."""

    def __init__(
        self,
        routes: Callable[[], tuple[Route, ...]],
        ask: Ask,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._routes = routes
        self._ask = ask
        self._sleep = sleep
        self._at_once = asyncio.Semaphore(_AT_ONCE)
        self.states: tuple[TargetState, ...] = ()

    async def run(self) -> None:
        """For ever; after a failure, or when the routes have changed, soon again."""
        while True:
            routes = self._routes()
            self.states = tuple(await asyncio.gather(*map(self._state, routes)))
            waited = 0.0
            failing = any(state.problem for state in self.states)
            while waited < CHECK_SECONDS and self._routes() == routes and not (failing and waited):
                await self._sleep(AGAIN_SECONDS)
                waited += AGAIN_SECONDS

    async def _state(self, route: Route) -> TargetState:
        asked = question(route)
        state = await self._asked(route, asked)
        if not state.problem:
            return state
        await self._sleep(AGAIN_SECONDS)
        return await self._asked(route, asked)

    async def _asked(self, route: Route, asked: Question) -> TargetState:
        async with self._at_once:
            try:
                async with asyncio.timeout(_ANSWER_SECONDS):
                    return state_of(route, await self._ask(route, asked.forward, asked.body))
            except TimeoutError:
                return state_of(route, Refusal(Reason.UPSTREAM_TIMEOUT, str(route.endpoint)))


def _kind(route: Route) -> TargetKind:
    return TargetKind.KUBERNETES if isinstance(route, KubernetesRoute) else TargetKind.ALLOWLIST


def asking(upstream: Callable[[], Upstream], config: Callable[[], UpstreamConfig]) -> Ask:
    """Questions over connections of their own: each resolves the name and verifies the certificate."""

    async def ask(route: Route, forward: Forward, body: bytes) -> int | Refusal:
        own = upstream()
        try:
            response = await own.send("", route, forward, _in_one_piece(body) if body else None, config())
            async with response:
                return response.status
        except FAILURES as error:
            return explain(error, route)
        finally:
            await own.close()

    return ask


async def _in_one_piece(body: bytes) -> AsyncIterator[bytes]:
    yield body
