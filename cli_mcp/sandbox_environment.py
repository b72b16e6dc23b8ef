"""The environment of every sandbox: where the proxy is and whom to trust, in each client's own words."""

from collections.abc import Collection, Mapping

from cli_mcp.names import CA_PATH, KUBECONFIG_PATH, WORKSPACE_PATH

# One variable for each way in which common clients are told to trust a CA.
_CA_VARIABLES = (
    "SSL_CERT_FILE",  # OpenSSL, Go, Rust's native-certs, Ruby, uv
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "NODE_EXTRA_CA_CERTS",
    "npm_config_cafile",  # npm, pnpm and yarn, also where an npmrc names another file
    "GIT_SSL_CAINFO",
    "AWS_CA_BUNDLE",
    "PIP_CERT",
    "CARGO_HTTP_CAINFO",
    "DENO_CERT",
)
HOSTNAME = "sandbox"
# What a sandbox serves to itself. Not every client knows networks, and none of them needs `[::1]`, at which
# httpx gives up altogether.
_NETWORK = "127.0.0.0/8"
_LOOPBACK = ("localhost", HOSTNAME, "127.0.0.1", _NETWORK, "0.0.0.0", "::1")  # noqa: S104 - nothing listens
# What kubectl, oc and client-go say in one line: a bad address, where none would be localhost:8080.
_NO_TARGET = "no-kubernetes-target-in-this-sandbox:0/none"

DEFAULT_ENVIRONMENT = {
    "LANG": "C.UTF-8",
    "TERM": "dumb",
    # Python of a distribution refuses packages (PEP 668) for the system's sake, which is read-only here.
    "PIP_BREAK_SYSTEM_PACKAGES": "1",
}
"""Of a sandbox whose image and instance say nothing else."""

SYSTEM_FILES = {
    # wget reads no variable that names a CA.
    "/etc/wgetrc": f"ca_certificate = {CA_PATH}\n",
    # An identity to commit with, behind whatever the user or a repository configures.
    "/etc/gitconfig": "[user]\n\tname = sandbox\n\temail = sandbox@localhost\n",
}
"""Files of clients that no variable reaches, in the default image and on one machine."""


def with_defaults(environment: Mapping[str, str]) -> dict[str, str]:
    """What a shell of a sandbox gets where image and instance give it `environment`: defaults for what is
    missing, and the programs that it installs for itself first in its PATH."""
    defaults = DEFAULT_ENVIRONMENT
    if environment.get("LC_ALL") or environment.get("LC_CTYPE"):
        defaults = {name: value for name, value in defaults.items() if name != "LANG"}
    programs = f"{WORKSPACE_PATH}/.local/bin"
    path = environment.get("PATH", "")
    if programs not in path.split(":"):
        path = f"{programs}:{path}" if path else programs
    return {**defaults, **environment, "PATH": path}


def sandbox_environment(
    proxy_url: str, hosts: Collection[str] = (), *, kubernetes: bool = True
) -> dict[str, str]:
    """The variables that the operator owns, for a sandbox whose proxy is `proxy_url` (http://host:port).

    `hosts` are those that the proxy lets through to: on one machine there may be `localhost` among them, of
    which the sandbox's own is then not to be reached by name. Without a `kubernetes` target there is no
    kubeconfig.

    Go asks no proxy for a loopback host, whatever the environment says. Java asks neither for a proxy nor for
    a CA there; who needs it says so in JAVA_TOOL_OPTIONS, after `keytool -importcert -noprompt -file
    $SSL_CERT_FILE -keystore $HOME/trust.p12 -storepass changeit`: -Djavax.net.ssl.trustStore=$HOME/trust.p12
    -Djavax.net.ssl.trustStorePassword=changeit -Dhttps.proxyHost=HOST -Dhttps.proxyPort=PORT, of the proxy.
    """
    behind_proxy = {*hosts, _NETWORK} if any(host.startswith("127.") for host in hosts) else set(hosts)
    no_proxy = ",".join(host for host in _LOOPBACK if host not in behind_proxy)
    proxy = {"HTTP_PROXY": proxy_url, "HTTPS_PROXY": proxy_url, "NO_PROXY": no_proxy}
    return {
        "HOME": WORKSPACE_PATH,
        **({"KUBECONFIG": KUBECONFIG_PATH} if kubernetes else {"KUBERNETES_MASTER": _NO_TARGET}),
        **proxy,
        **{name.lower(): value for name, value in proxy.items()},
        **dict.fromkeys(_CA_VARIABLES, CA_PATH),
        # Yarn from 2 on; it knows no NO_PROXY.
        "YARN_HTTP_PROXY": proxy_url,
        "YARN_HTTPS_PROXY": proxy_url,
        "UV_NATIVE_TLS": "1",  # uv looks at SSL_CERT_FILE only then
        "NODE_USE_ENV_PROXY": "1",  # Node's own fetch and https look at HTTPS_PROXY only then
    }


OPERATOR_OWNED_ENV = frozenset(sandbox_environment("")) | frozenset(sandbox_environment("", kubernetes=False))
"""Names that an instance cannot set; its values for them are not used."""
