"""The environment of every sandbox: where the proxy is and whom to trust, in each client's own words."""

from collections.abc import Collection

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
# What a sandbox serves to itself.
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def sandbox_environment(proxy_url: str, hosts: Collection[str] = ()) -> dict[str, str]:
    """The variables that the operator owns, for a sandbox whose proxy is `proxy_url` (http://host:port).

    `hosts` are those that the proxy lets through to: on one machine there may be `localhost` among them, of
    which the sandbox's own is then not to be reached by name.

    Go asks no proxy for a loopback host, whatever the environment says. Java asks neither for a proxy nor for
    a CA there; who needs it says so in JAVA_TOOL_OPTIONS, after `keytool -importcert -noprompt -file
    $SSL_CERT_FILE -keystore $HOME/trust.p12 -storepass changeit`: -Djavax.net.ssl.trustStore=$HOME/trust.p12
    -Djavax.net.ssl.trustStorePassword=changeit -Dhttps.proxyHost=HOST -Dhttps.proxyPort=PORT, of the proxy.
    """
    no_proxy = ",".join(host for host in _LOOPBACK if host not in hosts)
    proxy = {"HTTP_PROXY": proxy_url, "HTTPS_PROXY": proxy_url, "NO_PROXY": no_proxy}
    return {
        "HOME": WORKSPACE_PATH,
        "KUBECONFIG": KUBECONFIG_PATH,
        **proxy,
        **{name.lower(): value for name, value in proxy.items()},
        **dict.fromkeys(_CA_VARIABLES, CA_PATH),
        "UV_NATIVE_TLS": "1",  # uv looks at SSL_CERT_FILE only then
        "NODE_USE_ENV_PROXY": "1",  # Node's own fetch and https look at HTTPS_PROXY only then
    }


OPERATOR_OWNED_ENV = frozenset(sandbox_environment(""))
"""Names that an instance cannot set; its values for them are not used."""
