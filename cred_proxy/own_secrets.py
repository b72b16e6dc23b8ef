"""Whether a request would give a sandbox the Secrets that its own instance is made of.

The kubeconfig, the session key and the proxy's authority are Secrets of the instance's namespace. A
credential whose RBAC may read Secrets there reads them too, and with them all that the proxy keeps from the
sandbox. Which of several clusters is the instance's own cannot be told by an address, hence the same is
refused on every Kubernetes target.
"""

import re
from urllib.parse import unquote_plus

from cli_mcp.proxy_config import OwnSecrets
from cred_proxy.kubernetes_path import read_object_path
from cred_proxy.refusal import Reason, Refusal

_SECRETS = "secrets"
# A POST to all of them creates one; what is none of these the API server does not know.
_OF_MANY = frozenset({"GET", "HEAD", "DELETE"})
# Without what is read in two ways, such as escapes and white space.
_SELECTOR = re.compile(r"[A-Za-z0-9.,=!/_-]*")
_TERM = re.compile(r"metadata\.(name|namespace)(!=|==?)([a-z0-9.-]+)")


def judge_secrets(method: str, path: str, query: str, own: OwnSecrets) -> Refusal | None:
    """Why the request is refused, if it is. `path` is decoded and without the server's own.

    Whoever asks for many is told how to leave them out: nothing is missing from an answer in silence.
    """
    read = read_object_path(path)
    if read is None:
        # An API of its own that stands before the API server, such as Rancher's, would have them too.
        if _SECRETS in path.casefold().split("/"):
            return Refusal(Reason.WITHHELD, "Secrets are read below /api/v1 alone")
        return None
    if (read.group, read.resource) != ("", _SECRETS) or read.namespace not in ("", own.namespace):
        return None
    if read.name:
        if read.name not in own.names:
            return None
        return Refusal(
            Reason.WITHHELD,
            f"{read.name} is a Secret of this sandbox's own instance, and not available through it",
        )
    if method not in _OF_MANY or _leaves_out(query, own):
        return None
    others = (
        ",".join(f"metadata.name!={name}" for name in own.names)
        if read.namespace
        else f"metadata.namespace!={own.namespace}"
    )
    return Refusal(
        Reason.WITHHELD,
        "this would include those of the sandbox's own instance; ask for others by name, or with "
        f"--field-selector={others}",
    )


def _leaves_out(query: str, own: OwnSecrets) -> bool:
    """Whether the field selector can match none of the instance's Secrets."""
    pairs = (pair.partition("=") for pair in query.split("&"))
    selectors = [unquote_plus(value) for key, _, value in pairs if unquote_plus(key) == "fieldSelector"]
    if len(selectors) != 1 or not _SELECTOR.fullmatch(selectors[0]):
        return False
    left_out: set[str] = set()
    for term in filter(None, map(_TERM.fullmatch, selectors[0].split(","))):
        field, operator, value = term.groups()
        own_values = own.names if field == "name" else (own.namespace,)
        if operator != "!=" and value not in own_values:
            return True
        if operator == "!=" and field == "namespace" and value == own.namespace:
            return True
        if operator == "!=" and field == "name":
            left_out.add(value)
    return left_out.issuperset(own.names)
