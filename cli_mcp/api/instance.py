"""CliMcpInstance: one sandbox class, that is an image, what its shells may reach, and how many are kept warm.

The models are the API: the CRD is generated from them, local mode and the hooks read instances through them.
"""

import re
from collections import Counter
from typing import Annotated, Any, Literal

from pydantic import Field

from cli_mcp.api import duration, endpoint, quantity
from cli_mcp.api.endpoint import Endpoint
from cli_mcp.api.model import ATOMIC_LIST, SET, ApiModel, Check, Items, Rule, matching, unique_items
from cli_mcp.api.pod import (
    EnvVars,
    Labels,
    Limits,
    PullPolicy,
    PullSecrets,
    Resources,
    Tolerations,
)
from cli_mcp.api.scalars import (
    MAX_USERNAME_CHARACTERS,
    CertificateBundle,
    CommandTime,
    Domain,
    GoDuration,
    HttpProxyUrl,
    ImageReference,
    LabelName,
    ObjectName,
    OutputLimit,
    PositiveDuration,
    Quantity,
    Username,
    UsernamePattern,
)
from cli_mcp.execution import DEFAULT_TIMEOUT_SECONDS, MAX_TIMEOUT_SECONDS, STREAM_LIMIT_BYTES
from cli_mcp.sandbox_config import CommandLimits

# cli-mcp-<name>-kubeconfig must be a DNS label, hence the name has at most 44 characters.
NAME_PATTERN = r"^[a-z0-9]([-a-z0-9]{0,42}[a-z0-9])?$"
NAME_MESSAGE = (
    "must be 1 to 44 lower-case letters, digits and '-', no '-' first or last, since names of Services and "
    "Secrets are made from it; choose another"
)
_INT32_MAX = 2**31 - 1

DEFAULT_IDLE_TIMEOUT = "30m"
DEFAULT_WORKSPACE_SIZE = "10Gi"
DEFAULT_WORKSPACE_RETAIN = "24h"
# Without a request of its own, all the ephemeral-storage of the limit would be requested: ten sandboxes
# would fill a node of 100 GB.
DEFAULT_SANDBOX_RESOURCES = Resources(
    requests={"cpu": "100m", "memory": "128Mi", "ephemeral-storage": "100Mi"},
    limits={"cpu": "500m", "memory": "512Mi", "ephemeral-storage": "10Gi"},
)

Count = Annotated[int, Field(ge=1, le=_INT32_MAX)]
Tool = Literal["bash", "files", "processes"]


class ProxyTarget(ApiModel):
    """What a sandbox may reach: a Kubernetes API with the credential of a Secret, or hosts without any."""

    rules = (
        Rule(
            "self.type == 'kubernetes' || !has(self.secretName)",
            lambda target: target.type == "kubernetes" or target.secret_name is None,
            "secretName is for a kubernetes target; remove it, an allowlist target has no credential",
            field="secretName",
        ),
        Rule(
            "self.type == 'allowlist' || !has(self.domains)",
            lambda target: target.type == "allowlist" or not target.domains,
            "a kubernetes target takes its hosts from the kubeconfig; move domains to an allowlist target",
            field="domains",
        ),
        Rule(
            "self.type != 'allowlist' || has(self.domains)",
            lambda target: target.type != "allowlist" or bool(target.domains),
            "an allowlist target needs domains; list the hosts that sandboxes may reach",
            field="domains",
        ),
        Rule(
            "self.type == 'allowlist' || !has(self.allowUpgrades) || !self.allowUpgrades",
            lambda target: target.type == "allowlist" or not target.allow_upgrades,
            "a kubernetes target never allows upgrades, since exec and port-forward need them; "
            "remove allowUpgrades",
            field="allowUpgrades",
        ),
    )

    type: Literal["kubernetes", "allowlist"]
    """kubernetes: the API servers of a kubeconfig, its token put in by the proxy. allowlist: the hosts in
    domains, nothing put in."""
    secret_name: LabelName | None = None
    """kubernetes only: the Secret whose key kubeconfig has the credential; cli-mcp-<instance>-kubeconfig when
    left out. The kubeconfig may hold bearer tokens only."""
    domains: Annotated[
        Items[Domain], Field(min_length=1, max_length=16, json_schema_extra=SET), unique_items
    ] = ()
    """allowlist only: literal hosts, host:port or [ipv6]:port. A bare host means port 443. No wildcards."""
    allow_upgrades: bool = False
    """allowlist only: whether WebSockets and other protocol upgrades may pass."""

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """The hosts and ports of an allowlist target; empty for a kubernetes target."""
        return tuple(endpoint.parse(domain) for domain in self.domains)


class ProxyUpstream(ApiModel):
    """How the credential proxy itself gets out, where direct connections or public CAs are not enough."""

    http_proxy: HttpProxyUrl | None = None
    """Corporate HTTP proxy, http://host:port, asked to CONNECT to every target."""
    ca_bundle: CertificateBundle | None = None
    """PEM certificates of CAs to trust besides the public ones."""


def _no_duplicate_endpoint(proxy: "Proxy") -> bool:
    counts = Counter(named for target in proxy.targets for named in target.endpoints)
    return all(count == 1 for count in counts.values())


# CEL cannot flatten lists. So for each target the list of its domains, lower case and without :443, is made
# once; then each domain must stand in one list only, and there once. Even 8 times 16 long domains stay within
# the API server's cost budget this way.
_DISTINCT_ENDPOINTS = (
    "[self.targets.map(target, has(target.domains) ? target.domains.map(domain, (domain.endsWith(':443') "
    "? domain.substring(0, size(domain) - 4) : domain).lowerAscii()) : [])].all(lists, lists.all(list, "
    "list.all(domain, lists.filter(other, domain in other).size() == 1 && list.exists_one(e, e == domain))))"
)


class Proxy(ApiModel):
    """The credential proxy, the only way out of a sandbox."""

    rules = (
        Rule(
            "self.targets.filter(target, target.type == 'kubernetes').size() <= 1",
            lambda proxy: sum(target.type == "kubernetes" for target in proxy.targets) <= 1,
            "at most one kubernetes target; put all clusters into one kubeconfig",
            field="targets",
        ),
        Rule(
            _DISTINCT_ENDPOINTS,
            _no_duplicate_endpoint,
            "the same host and port twice; remove one (a bare host means port 443, case does not matter)",
            field="targets",
        ),
    )

    targets: Annotated[Items[ProxyTarget], Field(min_length=1, max_length=8, json_schema_extra=ATOMIC_LIST)]
    """What sandboxes may reach; everything else is refused. At most one target of type kubernetes."""
    upstream: ProxyUpstream | None = None
    """Corporate proxy and private CAs on the way to the targets."""

    @property
    def kubernetes_target(self) -> ProxyTarget | None:
        return next((target for target in self.targets if target.type == "kubernetes"), None)


class Workspace(ApiModel):
    """/workspace, the home directory of the shell."""

    rules = (
        Rule(
            "(has(self.persistent) && self.persistent) "
            "|| !(has(self.size) || has(self.storageClassName) || has(self.retain))",
            lambda workspace: (
                workspace.persistent
                or (workspace.size, workspace.storage_class_name, workspace.retain) == (None, None, None)
            ),
            "size, storageClassName and retain need persistent: true; set it, or remove them",
            field="persistent",
        ),
    )

    persistent: bool = False
    """Whether files outlive the sandbox and come back when the same session returns."""
    size: Quantity | None = None
    """Size of the volume, 10Gi when left out."""
    storage_class_name: ObjectName | None = None
    """Storage class of the volume; the cluster's default when left out."""
    retain: PositiveDuration | None = None
    """How long the volume of an ended session is kept, counted from its last use: a Go duration, 24h when
    left out."""

    @property
    def size_bytes(self) -> int:
        return quantity.parse_bytes(self.size or DEFAULT_WORKSPACE_SIZE)

    @property
    def retain_seconds(self) -> float:
        return duration.parse_seconds(self.retain or DEFAULT_WORKSPACE_RETAIN)


class CommandTimeout(ApiModel):
    """How long a command may run, in seconds or as a duration such as 5m."""

    default: CommandTime | None = None
    """For a call that asks for no time: 60 seconds when left out, or max if that is less. The command is
    ended a little before, so that its answer is there when the time is over."""
    max: CommandTime | None = None
    """The most that a call may ask for, up to 1h: 300 seconds when left out. A server that is replaced ends
    what takes longer than 315 seconds."""

    @property
    def max_seconds(self) -> float:
        return MAX_TIMEOUT_SECONDS if self.max is None else duration.parse_seconds(self.max)

    @property
    def default_seconds(self) -> float:
        if self.default is None:
            return min(DEFAULT_TIMEOUT_SECONDS, self.max_seconds)
        return duration.parse_seconds(self.default)


class Sandbox(ApiModel):
    """The sandbox pods of this instance: image, resources, environment, life time."""

    image: ImageReference = ""
    """Any image with bash 4.4 or newer and a numeric USER. Empty means the operator's own sandbox image."""
    idle_timeout: GoDuration = DEFAULT_IDLE_TIMEOUT
    """How long a session may be idle before its sandbox is removed: a Go duration such as 90s or 1h30m. Zero
    and negative mean 30m. A running command is never cut off by it."""
    warm_pool_size: Annotated[int, Field(ge=0, le=_INT32_MAX)] = 0
    """How many sandboxes are kept ready for new sessions. Changing it restarts nothing."""
    resources: Resources = Resources()
    """Resources of a sandbox. What is left out is 100m CPU, 128Mi memory and 100Mi ephemeral-storage
    requested, and limits of 500m CPU, 512Mi memory and 10Gi ephemeral-storage."""
    env: EnvVars = ()
    """Further environment variables. The shell can read them: no place for credentials."""
    image_pull_policy: PullPolicy | None = None
    """When the image is pulled; Kubernetes' default for the image's tag when left out."""
    runtime_class_name: ObjectName | None = None
    """RuntimeClass of the pods, for stronger isolation such as gVisor or Kata Containers."""
    node_selector: Labels = Field(default_factory=dict)
    """Labels that a node must have."""
    tolerations: Tolerations = ()
    """Node taints that the pods tolerate."""
    priority_class_name: ObjectName | None = None
    """PriorityClass of the pods."""
    image_pull_secrets: PullSecrets = ()
    """Secrets of the same namespace for pulling the image."""
    host_users: bool | None = None
    """false gives each pod a user namespace of its own, where the cluster has them."""
    max_sessions: Count | None = None
    """How many sessions the instance serves at the same time; no limit when left out."""
    max_sessions_per_owner: Count | None = None
    """How many of them one caller may have; no limit when left out."""
    max_lifetime: PositiveDuration | None = None
    """How old a sandbox may become, even while a command runs: a Go duration; no limit when left out."""
    dns: Literal["none", "cluster"] = "none"
    """none: the pods resolve no names, the proxy does. cluster: they may ask the cluster's DNS, which is also
    a way for data to leave."""
    isolation_test: bool = True
    """Whether a sandbox proves that it can reach nothing but the proxy before it is used."""
    workspace: Workspace = Workspace()
    """Whether files outlive the sandbox."""
    command_timeout: Annotated[
        CommandTimeout,
        Check(
            None,
            lambda timeout: timeout.default_seconds <= timeout.max_seconds,
            "default is longer than max, which is 300 seconds when left out; shorten default, or raise max",
        ),
    ] = CommandTimeout()
    """How long a command may run."""
    output_limit: OutputLimit | None = None
    """How many bytes of each of stdout and stderr a result has, the beginning and the end of longer ones:
    from 1000 to 65536, 50000 when left out. All of it is in a file."""

    @property
    def idle_timeout_seconds(self) -> float:
        seconds = duration.parse_seconds(self.idle_timeout)
        return seconds if seconds > 0 else duration.parse_seconds(DEFAULT_IDLE_TIMEOUT)

    @property
    def max_lifetime_seconds(self) -> float | None:
        return None if self.max_lifetime is None else duration.parse_seconds(self.max_lifetime)

    @property
    def command_limits(self) -> CommandLimits:
        limit = self.output_limit
        return CommandLimits(
            default_seconds=self.command_timeout.default_seconds,
            max_seconds=self.command_timeout.max_seconds,
            output_bytes=STREAM_LIMIT_BYTES if limit is None else quantity.parse_bytes(limit),
        )

    @property
    def effective_resources(self) -> Resources:
        """Requests and limits with the defaults for what is left out, none of them above its limit."""
        return self.resources.with_defaults(DEFAULT_SANDBOX_RESOURCES)

    @property
    def limits(self) -> Limits:
        limits = self.effective_resources.limits
        return Limits(
            cpu_millicores=quantity.parse_millicores(limits["cpu"]),
            memory_bytes=quantity.parse_bytes(limits["memory"]),
            ephemeral_storage_bytes=quantity.parse_bytes(limits["ephemeral-storage"]),
        )


class ServerContainer(ApiModel):
    """The container of the MCP server."""

    resources: Resources = Resources()
    """Resources of the container; the operator's defaults for what is left out."""
    image_pull_policy: PullPolicy | None = None
    """When the operator's image is pulled."""


class SshRoute(ApiModel):
    """Which keys may log in as which user. Each user name is a session of its own."""

    rules = (
        Rule(
            "has(self.username) != has(self.usernamePattern)",
            lambda route: (route.username is None) != (route.username_pattern is None),
            "needs either username or usernamePattern; keep one of them",
        ),
    )

    username: Username | None = None
    """One user name."""
    username_pattern: UsernamePattern | None = None
    """All user names that this regular expression matches from ^ to $, such as ^agent-[a-z0-9]+$."""
    authorized_keys_secret: ObjectName
    """Secret whose key authorized_keys lists the public keys, in the format of OpenSSH."""

    def admits(self, username: str) -> bool:
        """Whether the route is for this user; the answer takes a bounded time whatever the pattern."""
        if self.username_pattern is None:
            return username == self.username
        if len(username) > MAX_USERNAME_CHARACTERS:
            return False
        return re.fullmatch(self.username_pattern, username) is not None


class SshService(ApiModel):
    """The Service of the SSH gateway."""

    rules = (
        Rule(
            "!has(self.nodePort) || (has(self.type) && self.type != 'ClusterIP')",
            lambda service: service.node_port is None or service.type != "ClusterIP",
            "nodePort needs type NodePort or LoadBalancer; set type, or remove nodePort",
            field="nodePort",
        ),
    )

    type: Literal["ClusterIP", "NodePort", "LoadBalancer"] = "ClusterIP"
    """How clients reach the gateway's port 22."""
    node_port: Annotated[int, Field(ge=1, le=65535)] | None = None
    """Fixed port on every node; chosen by the cluster when left out."""


def _usernames_are_unique(ssh: "Ssh") -> bool:
    names = [route.username for route in ssh.routes if route.username is not None]
    return len(names) == len(set(names))


class Ssh(ApiModel):
    """A second way in: SSH with public keys, every login forced into the MCP server."""

    rules = (
        Rule(
            "self.routes.all(route, !has(route.username) || self.routes.exists_one(other, "
            "has(other.username) && other.username == route.username))",
            _usernames_are_unique,
            "two routes have the same username; put all its keys into one Secret",
            field="routes",
        ),
    )

    routes: Annotated[Items[SshRoute], Field(min_length=1, max_length=64, json_schema_extra=ATOMIC_LIST)]
    """Who may log in; the first route that fits the user name counts."""
    host_key_secret: ObjectName | None = None
    """Secret whose key ssh_host_ed25519_key has the gateway's host key; generated when left out."""
    service: SshService = SshService()
    """How clients reach the gateway."""


DefaultSession = Literal["perCaller", "refuse"]


class InstanceSpec(ApiModel):
    """What the instance should be."""

    replicas: Count = 1
    """MCP server pods."""
    sandbox: Sandbox = Sandbox()
    """The sandbox pods: image, resources, environment, life time."""
    tools: Annotated[Items[Tool], Field(min_length=1, max_length=3, json_schema_extra=SET), unique_items] = (
        "bash",
    )
    """MCP tools on offer: bash, files (read, write, list, move, delete), processes (start, list, kill)."""
    server_container: ServerContainer | None = None
    """The container of the MCP server."""
    proxy: Proxy | None = None
    """What sandboxes may reach. Without it there are no routes, and in a cluster no sandboxes."""
    ssh: Ssh | None = None
    """SSH access; off when left out."""
    default_session: DefaultSession = "perCaller"
    """What a call without X-Session-ID gets: perCaller, a session that is the caller's own; or refuse."""


class Metadata(ApiModel):
    """A Kubernetes object's metadata, with the fields that only a cluster fills in."""

    name: Annotated[str, matching(NAME_PATTERN, NAME_MESSAGE)]
    namespace: LabelName | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
    uid: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    finalizers: Items[str] = ()
    generate_name: str = ""
    managed_fields: Items[Any] = ()
    owner_references: Items[Any] = ()
    resource_version: str = ""
    self_link: str = ""


class CliMcpInstance(ApiModel):
    """One sandbox class: an image, what its shells may reach, and how many are kept warm."""

    api_version: Literal["cli-mcp.redhat.com/v1alpha1"]
    kind: Literal["CliMcpInstance"]
    metadata: Metadata
    spec: InstanceSpec = InstanceSpec()
    """What the instance should be."""
    status: dict[str, Any] = Field(default_factory=dict)
    """What was last observed; the operator writes it and nothing here relies on it."""

    @property
    def kubeconfig_secret_name(self) -> str | None:
        """The Secret of the kubernetes target; None without such a target."""
        target = self.spec.proxy and self.spec.proxy.kubernetes_target
        return (target.secret_name or f"cli-mcp-{self.metadata.name}-kubeconfig") if target else None
