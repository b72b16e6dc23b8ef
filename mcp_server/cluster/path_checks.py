"""Looks along the way of a call and reports what it finds: agents of warm sandboxes, proxies, their targets.

The report goes into the ConfigMap `cli-mcp-<instance>-path`, from where the hooks put it into conditions.
Only a change is written; and every few minutes once more, should the ConfigMap have been made again.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

import aiohttp
from pydantic import ValidationError

from cli_mcp.names import AGENT_PORT, COMPONENT_PROXY, COMPONENT_SERVER, PROXY_METRICS_PORT
from cli_mcp.path_report import PathReport, TargetStates, merged
from mcp_server.cluster.kubernetes import KubernetesApi, KubernetesError, Object, Resource
from mcp_server.cluster.pods import MalformedPod, SandboxPod, read_pod

logger = logging.getLogger(__name__)

LOOK_SECONDS = 10.0
WRITE_AGAIN_SECONDS = 300.0
_ANSWER_SECONDS = 3.0
_MAX_ANSWER_BYTES = 1024 * 1024

_CAUSES = "see whether a NetworkPolicy, a service mesh or a firewall stops it at port"
NO_AGENT = f"the server does not get through to sandboxes; {_CAUSES} {AGENT_PORT}"
NO_PROXY = f"the server does not get through to the proxy; {_CAUSES} {PROXY_METRICS_PORT}"


@dataclass(frozen=True, slots=True)
class Probes:
    """`connects`: whether host and port take a connection. `targets_of`: what the proxy at an address says of
    its targets; None when it says nothing."""

    connects: Callable[[str, int], Awaitable[bool]]
    targets_of: Callable[[str], Awaitable[TargetStates | None]]


class Neighbours:
    """The audience of a watch on the instance's proxies and servers."""

    def __init__(self) -> None:
        self._pods: dict[str, SandboxPod] = {}

    def listed(self, items: list[Object], revision: str) -> None:
        self._pods.clear()
        for item in items:
            self.changed("ADDED", item)

    def changed(self, event: str, item: Object) -> None:
        try:
            pod = read_pod(item)
        except MalformedPod as error:
            logger.error("the Kubernetes API shows %s", error)
            return
        if event == "DELETED":
            self._pods.pop(pod.uid, None)
        else:
            self._pods[pod.uid] = pod

    def proxy_addresses(self) -> list[str]:
        """Of those that should answer."""
        return sorted(
            pod.ip for pod in self._of(COMPONENT_PROXY) if pod.ready and pod.ip and not pod.terminating
        )

    def server_names(self) -> set[str]:
        return {pod.name for pod in self._of(COMPONENT_SERVER)}

    def _of(self, component: str) -> Iterable[SandboxPod]:
        return (pod for pod in self._pods.values() if pod.component == component)


class PathChecks:
    """`pod_name` is this replica's; `warm_addresses` are those of sandboxes that wait for a session."""

    def __init__(
        self,
        api: KubernetesApi,
        neighbours: Neighbours,
        config_map: str,
        namespace: str,
        pod_name: str,
        warm_addresses: Callable[[], list[str]],
        probes: Probes,
    ) -> None:
        self._api = api
        self._neighbours = neighbours
        self._config_map = config_map
        self._resource = Resource.core(namespace, "configmaps")
        self._pod_name = pod_name
        self._warm_addresses = warm_addresses
        self._probes = probes
        self._complaint = ""

    async def run(self) -> None:
        """For ever."""
        clock = asyncio.get_running_loop().time
        before = PathReport()
        written, written_at = PathReport(), float("-inf")
        while True:
            found = await self._look()
            report = confirmed(before, found)
            before = found if found.targets else found.model_copy(update={"targets": before.targets})
            due = report != written or clock() - written_at >= WRITE_AGAIN_SECONDS
            if due and (report.targets or report.unreachable) and await self._write(report):
                written, written_at = report, clock()
            await asyncio.sleep(LOOK_SECONDS)

    async def _look(self) -> PathReport:
        addresses, warm = self._neighbours.proxy_addresses(), self._warm_addresses()[:1]
        answers = await asyncio.gather(*map(self._probes.targets_of, addresses))
        reached = await asyncio.gather(*(self._probes.connects(one, AGENT_PORT) for one in warm))
        return PathReport(
            targets=merged(state for answer in answers if answer is not None for state in answer.targets),
            unreachable=(
                *((NO_AGENT,) if not all(reached) else ()),
                *((NO_PROXY,) if None in answers else ()),
            ),
        )

    async def _write(self, report: PathReport) -> bool:
        try:
            present = (await self._api.get(self._resource, self._config_map)).get("data") or {}
            mine = {self._pod_name: report.model_dump_json(by_alias=True)}
            changes = data_changes(present, mine, self._neighbours.server_names())
            if changes:
                await self._api.patch(self._resource, self._config_map, {"data": changes})
        except KubernetesError as error:
            if self._complaint != str(error):
                logger.warning("ConfigMap %s is not written: %s", self._config_map, error)
            self._complaint = str(error)
            return False
        self._complaint = ""
        return True


def confirmed(before: PathReport, found: PathReport) -> PathReport:
    """What two looks in a row agree on: a pod may be on its way out at one. Targets that no proxy has looked
    at, as in the first seconds of a new one, stay what they were; the proxy looks twice by itself."""
    return PathReport(
        targets=found.targets or before.targets,
        unreachable=tuple(sentence for sentence in found.unreachable if sentence in before.unreachable),
    )


def data_changes(present: dict[str, str], mine: dict[str, str], servers: set[str]) -> dict[str, str | None]:
    """A merge patch (RFC 7386) for the ConfigMap's data: my report, and away with those of servers that are
    gone."""
    gone = dict.fromkeys(present.keys() - servers - mine.keys()) if servers else {}
    return gone | {key: value for key, value in mine.items() if present.get(key) != value}


def network_probes(session: aiohttp.ClientSession) -> Probes:
    """Over the network."""

    async def connects(host: str, port: int) -> bool:
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                _, writer = await asyncio.open_connection(host, port)
        except (OSError, TimeoutError):
            return False
        writer.transport.abort()
        return True

    async def targets_of(host: str) -> TargetStates | None:
        authority = f"[{host}]" if ":" in host else host
        timeout = aiohttp.ClientTimeout(total=_ANSWER_SECONDS)
        try:
            url = f"http://{authority}:{PROXY_METRICS_PORT}/targets"
            async with session.get(url, timeout=timeout) as response:
                body = await response.content.read(_MAX_ANSWER_BYTES)
                # 404: a proxy of the version before, while a rollout lasts.
                return TargetStates.model_validate_json(body) if response.status == 200 else TargetStates()
        except (aiohttp.ClientError, TimeoutError):
            return None
        except ValidationError as error:
            logger.error("the proxy says of its targets what cannot be read: %s", error)
            return TargetStates()

    return Probes(connects, targets_of)
