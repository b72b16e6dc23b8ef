"""Names, labels, annotations, ports and paths that the hooks, the server and the sandboxes agree on.

Nothing but the standard library: the sandbox agent imports it too.
"""

from dataclasses import dataclass

GROUP = "cli-mcp.redhat.com"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "CliMcpInstance"
PLURAL = "climcpinstances"
MCP_SUBRESOURCE = "mcp"
"""Virtual subresource that only exists in RBAC: who may use it may use the instance's MCP server."""

LABEL_INSTANCE = f"{GROUP}/instance"
LABEL_COMPONENT = f"{GROUP}/component"
LABEL_POOL_HASH = f"{GROUP}/pool-hash"
LABEL_SESSION_ID = f"{GROUP}/session-id"
LABEL_STATE = f"{GROUP}/state"
LABEL_CONTROLLER_UID = "controller-uid"
"""Set on every child of an instance; Metacontroller's selector (generateSelector)."""

ANNOTATION_LAST_ACTIVITY = f"{GROUP}/last-activity"
ANNOTATION_LAST_USED = f"{GROUP}/last-used"
ANNOTATION_CLAIMED_AT = f"{GROUP}/claimed-at"
"""When a server reserved the pod for its session, or made it for that; with milliseconds."""
ANNOTATION_SESSION_OWNER = f"{GROUP}/session-owner"
ANNOTATION_FIRST_POD = f"{GROUP}/first-pod"
"""On a workspace: uid of the pod in which the first command of its session ran; without it it is empty."""
ANNOTATION_ENDED_BY = f"{GROUP}/ended-by"
"""On a retiring pod: what its session was ended by, in the words of the server that did."""
ANNOTATION_ROTATE_SESSION_KEY = f"{GROUP}/rotate-session-key"
ANNOTATION_ROTATE_PROXY_CA = f"{GROUP}/rotate-proxy-ca"
ANNOTATION_ROTATED_FOR = f"{GROUP}/rotated-for"
"""On a generated Secret: the value of the instance's rotate annotation that it was last rotated for."""
ANNOTATION_LAST_APPLIED = "metacontroller.k8s.io/last-applied-configuration"

COMPONENT_SANDBOX = "sandbox"
COMPONENT_SERVER = "server"
COMPONENT_PROXY = "proxy"
COMPONENT_SSH = "ssh"

STATE_CLAIMING = "claiming"
STATE_ACTIVE = "active"
STATE_RETIRING = "retiring"

SANDBOX_CONTAINER = "sandbox"
AGENT_PORT = 8090
PROXY_PORT = 8080
REFUSED_PATH = "/refused"
"""On the proxy's port: what it refuses to who asks, a line at a time, for as long as the connection stays."""
PROXY_METRICS_PORT = 9090
SERVER_PORT = 8443
SSH_PORT = 2222
SSH_SERVICE_PORT = 22

ISOLATION_FAILED_EXIT_CODE = 77
"""The sandbox agent's exit status when its self-test shows that the pod is not isolated."""

KUBECONFIG_KEY = "kubeconfig"
PROXY_CONFIG_KEY = "proxy-config.json"
SANDBOX_CONFIG_KEY = "sandbox.json"
SESSION_KEYS_KEY = "session-keys.json"
CA_BUNDLE_KEY = "ca.crt"

WORKSPACE_PATH = "/workspace"
KUBECONFIG_PATH = "/config/kubeconfig"
CA_PATH = "/etc/cli-mcp/proxy-ca/ca.crt"


@dataclass(frozen=True, slots=True)
class InstanceNames:
    """The names of everything that belongs to the instance `instance`, at most 44 characters long."""

    instance: str

    @property
    def server(self) -> str:
        """Server Deployment, Service, ServiceAccount, Role, RoleBinding, ConfigMap, NetworkPolicy."""
        return f"cli-mcp-{self.instance}"

    @property
    def proxy(self) -> str:
        """Proxy Deployment, Service, ServiceAccount, ConfigMap, NetworkPolicy."""
        return f"{self.server}-proxy"

    @property
    def proxy_ca(self) -> str:
        """Secret with the certificate authority of the proxy."""
        return f"{self.server}-proxy-ca"

    @property
    def session_key(self) -> str:
        """Secret with the private keys that sign the server's calls to sandboxes."""
        return f"{self.server}-session-key"

    @property
    def session_keys(self) -> str:
        """ConfigMap with their public halves, one `<kid>.pem` each."""
        return f"{self.server}-session-keys"

    @property
    def path_report(self) -> str:
        """ConfigMap in which the servers say what calls meet on their way."""
        return f"{self.server}-path"

    @property
    def sandbox(self) -> str:
        """Sandbox ServiceAccount and NetworkPolicy."""
        return f"{self.server}-sandbox"

    @property
    def client(self) -> str:
        """ServiceAccount, Role and RoleBinding of clients that have no other identity."""
        return f"{self.server}-client"

    @property
    def ssh(self) -> str:
        """SSH gateway Deployment, Service, ServiceAccount, RoleBinding, ConfigMap, NetworkPolicy."""
        return f"{self.server}-ssh"

    @property
    def ssh_host_key(self) -> str:
        """Secret with the generated SSH host key."""
        return f"{self.server}-ssh-host-key"

    @property
    def kubeconfig(self) -> str:
        """Secret of the admin with the real kubeconfig, unless the target names another."""
        return f"{self.server}-kubeconfig"

    @property
    def tls(self) -> str:
        """Secret of the admin (on OpenShift of the platform) with the server's TLS certificate."""
        return f"{self.server}-tls"

    @property
    def pool_prefix(self) -> str:
        """Warm pods, and the claims of their workspaces: this and a number."""
        return f"{self.server}-pool-"

    @property
    def on_demand_prefix(self) -> str:
        """Pods that the server makes for one session: this, a hash of the session's id, and a number."""
        return f"{self.server}-s-"
