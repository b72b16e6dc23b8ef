"""SSH access: the values of the gateway's templates, and what clients need to know about its host key."""

import base64
import hashlib
import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from cli_mcp import names
from cli_mcp.api.instance import Ssh
from hooks.wire import Parent

ROUTES_KEY = "ssh-routes.json"
HOST_KEY = "ssh_host_ed25519_key"
AUTHORIZED_KEYS = "authorized_keys"
AUTHORIZED_KEYS_DIRECTORY = "/etc/cli-mcp/ssh-authorized-keys"
_CACHED_KEYS = 256


@dataclass(frozen=True, slots=True)
class HostKey:
    """The public half of the gateway's host key: its SHA256 fingerprint as ssh prints it, and `type
    base64`."""

    fingerprint: str
    public_key: str

    def known_hosts(self, parent: Parent) -> str:
        """A line for known_hosts, for the gateway's name in the cluster; elsewhere the name is to be
        replaced."""
        return f"{parent.names.ssh}.{parent.namespace}.svc {self.public_key}"


def host_key_secret(parent_names: names.InstanceNames, ssh: Ssh) -> str:
    return ssh.host_key_secret or parent_names.ssh_host_key


def routes_json(ssh: Ssh) -> str:
    """The ConfigMap's content: the routes of the spec, in their order, since the first that fits counts."""
    routes = [route.model_dump(by_alias=True, exclude_none=True) for route in ssh.routes]
    return json.dumps({"version": 1, "routes": routes}, separators=(",", ":"), sort_keys=True)


def authorized_keys_secrets(ssh: Ssh) -> list[dict[str, Any]]:
    """Each Secret once: the volume that holds it and where it is mounted, a directory with the Secret's
    name."""
    found = sorted({route.authorized_keys_secret for route in ssh.routes})
    return [
        {
            "name": name,
            # The name of an object may be too long for a volume, and may have dots.
            "volume": f"keys-{hashlib.sha256(name.encode()).hexdigest()[:12]}",
            "path": f"{AUTHORIZED_KEYS_DIRECTORY}/{name}",
        }
        for name in found
    ]


@lru_cache(maxsize=_CACHED_KEYS)
def read_host_key(private_key: str) -> HostKey | None:
    """None when the text is no Ed25519 private key that OpenSSH would read without a passphrase."""
    try:
        key = serialization.load_ssh_private_key(private_key.encode(), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return None
    if not isinstance(key, Ed25519PrivateKey):
        return None
    encoded = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    public_key = encoded.decode()
    blob = base64.b64decode(public_key.split(" ")[1])
    digest = base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")
    return HostKey(f"SHA256:{digest}", public_key)
