"""What an admin is told when something that they bring is missing or wrong, and that mending it is enough."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import requests
import yaml

from tests.e2e.instances import SMALL, Instance, kubeconfig, merged, new_namespace
from tests.e2e.operator import Object, eventually, get, kubectl
from tests.hooks.world import KUBERNETES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SAID_SECONDS = 30
READY_SECONDS = 60
# The kubelet brings a changed Secret into a pod within a minute and a half.
MOUNTED_SECONDS = 120
SPEC = merged(SMALL, {"sandbox": {"warmPoolSize": 1}, "proxy": KUBERNETES})
KUBECONFIG, TLS = "cli-mcp-demo-kubeconfig", "cli-mcp-demo-tls"


@pytest.fixture(scope="module")
def ready(instance: Instance) -> Instance:
    instance.create(SPEC)
    instance.wait_for("Ready", READY_SECONDS)
    return instance


@pytest.fixture
def bare(system: None, tmp_path: Any) -> Iterator[Instance]:
    """Applied before any of its Secrets."""
    with new_namespace(tmp_path, "bare") as made:
        made.apply(SPEC)
        yield made


def says(instance: Instance, reason: str, *parts: str) -> str:
    """The message, once Ready is False for this reason and says all of it."""
    said: Object = {}

    def reached() -> bool:
        said.update(instance.condition())
        return said.get("reason") == reason and all(part in said["message"] for part in parts)

    try:
        eventually(reached, SAID_SECONDS)
    except AssertionError:
        raise AssertionError(f"{reason} with {parts} expected: {said}") from None
    assert said["status"] == "False"
    return str(said["message"])


def good_token(instance: Instance) -> str:
    """One that does not expire soon, which would be said too."""
    return instance.token("investigator", "1000h")


def test_missing_secrets_are_named_until_the_last_is_there(bare: Instance) -> None:
    says(bare, "SecretsNotFound", f"Secret {KUBECONFIG} is missing", f"Secret {TLS} is missing")
    bare.make_server_certificate()
    message = says(bare, "SecretsNotFound", f"Secret {KUBECONFIG} is missing")
    eventually(lambda: TLS not in bare.condition()["message"], SAID_SECONDS)
    assert "create it with the key kubeconfig" in message
    assert bare.component("sandbox") == [], "there is nothing that they could reach"
    bare.make_kubeconfig(bare.make_identity("investigator", ()))
    bare.wait_for("Ready", READY_SECONDS)
    assert bare.client().bash("s1", "echo works").stdout == "works\n"


def with_user(**user: Any) -> Callable[[Object], None]:
    def edit(config: Object) -> None:
        config["users"][0]["user"] = user

    return edit


def with_cluster(**changes: Any) -> Callable[[Object], None]:
    def edit(config: Object) -> None:
        config["clusters"][0]["cluster"].update(changes)

    return edit


INVALID = {
    "a credential plugin": (with_user(exec={"command": "aws"}), 'user "me"', "exec"),
    "a client certificate": (
        with_user(**{"client-certificate-data": "AA==", "client-key-data": "AA=="}),
        'user "me"',
        "client-certificate-data",
    ),
    "a file of another machine": (with_user(tokenFile="/token"), 'user "me"', "tokenFile"),
    "no TLS": (with_cluster(server="http://kubernetes.default.svc"), 'cluster "here"', "https"),
    "unverified TLS": (
        with_cluster(**{"insecure-skip-tls-verify": True}),
        'cluster "here"',
        "insecure-skip-tls-verify",
    ),
}


@pytest.mark.parametrize(("edit", "entry", "field"), INVALID.values(), ids=INVALID)
def test_an_invalid_kubeconfig_is_named_and_sessions_go_on_with_the_last_good_one(
    ready: Instance, edit: Callable[[Object], None], entry: str, field: str
) -> None:
    client = ready.client()
    read = "kubectl get configmap kube-root-ca.crt -o name"
    assert client.bash("s1", read).exit_code == 0
    config = kubeconfig(ready.namespace, good_token(ready))
    edit(config)
    ready.make_secret(KUBECONFIG, {"kubeconfig": yaml.safe_dump(config)})
    says(ready, "KubeconfigInvalid", KUBECONFIG, entry, field)
    assert client.bash("s1", read).exit_code == 0
    ready.make_kubeconfig(good_token(ready))
    ready.wait_for("Ready", SAID_SECONDS)
    assert client.bash("s1", read).exit_code == 0


def test_what_is_no_kubeconfig_is_said_without_quoting_it(ready: Instance) -> None:
    ready.make_secret(KUBECONFIG, {"kubeconfig": "token: eyJhbGciOi-secret\n"})
    assert "secret\n" not in says(ready, "KubeconfigInvalid", KUBECONFIG)
    assert "eyJhbGciOi" not in ready.condition()["message"]
    ready.make_kubeconfig(good_token(ready))
    ready.wait_for("Ready", SAID_SECONDS)


def mend_certificate(instance: Instance) -> None:
    """With another one, which the server shows once the kubelet has brought it."""
    instance.make_server_certificate()

    def is_shown() -> bool:
        try:
            return instance.client().get("/live").ok
        except requests.exceptions.SSLError:
            return False

    eventually(is_shown, MOUNTED_SECONDS)


@pytest.mark.parametrize(
    ("name", "mend", "keys"),
    [
        (TLS, mend_certificate, ("tls.crt", "tls.key")),
        (KUBECONFIG, lambda it: it.make_kubeconfig(good_token(it)), ("kubeconfig",)),
    ],
    ids=["TLS", "kubeconfig"],
)
def test_a_secret_that_goes_is_named_and_calls_go_on(
    ready: Instance, name: str, mend: Callable[[Instance], None], keys: tuple[str, ...]
) -> None:
    client = ready.client()
    assert client.bash("s2", "KEPT=yes").exit_code == 0
    kubectl("-n", ready.namespace, "delete", "secret", name)
    says(ready, "SecretsNotFound", f"Secret {name} is missing")
    assert client.bash("s2", "echo $KEPT").stdout == "yes\n"
    ready.make_secret(name, {"other": "key"})
    says(ready, "SecretKeysInvalid", name, *keys)
    mend(ready)
    ready.wait_for("Ready", READY_SECONDS)
    assert ready.client().bash("s2", "echo $KEPT").stdout == "yes\n"


def test_an_image_that_is_not_there_is_named(ready: Instance) -> None:
    missing = "localhost/no-such-image:1"
    ready.apply(merged(SPEC, {"sandbox": {"image": missing}}))
    eventually(lambda: missing in ready.condition("WarmPoolReady").get("message", ""), 120)
    ready.apply(SPEC)
    ready.wait_for("Ready", READY_SECONDS)
    assert get(ready.namespace, "climcpinstance", "demo") is not None
