"""Certificate, session key and proxy CA are exchanged while a session works, and it does not notice."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
import requests

from cli_mcp import names
from cli_mcp.session_keys import PUBLICATION, SessionKeys
from hooks.generated import decoded_data
from tests.e2e.operator import eventually, kubectl
from tests.hooks.world import KUBERNETES

if TYPE_CHECKING:
    from tests.e2e.instances import Instance
    from tests.e2e.mcp_client import McpClient

# Beside the time for which both are good: a changed Secret takes a minute and a half to a pod.
MOUNTED = timedelta(seconds=90)
READ = "kubectl get configmap kube-root-ca.crt -o name"
# Trusts the newest authority alone, which is the first in the file.
READ_BY_THE_NEWEST = (
    "sed '/END CERTIFICATE/q' $CURL_CA_BUNDLE >/tmp/newest; "
    "curl -sS -o /dev/null --cacert /tmp/newest https://kubernetes.default.svc/version"
)


@pytest.fixture(scope="module")
def ready(instance: Instance) -> Instance:
    instance.create({"sandbox": {"warmPoolSize": 1}, "proxy": KUBERNETES})
    instance.wait_for("Ready", 60)
    return instance


def works(client: McpClient) -> bool:
    return client.bash("s1", f'{READ} && echo "$KEPT"').stdout.endswith("\nyes\n")


def secret(instance: Instance, name: str) -> dict[str, str]:
    return decoded_data(instance.child("secret", f"cli-mcp-{instance.name}-{name}"))


def keys(instance: Instance) -> SessionKeys:
    return SessionKeys.model_validate_json(secret(instance, "session-key")[names.SESSION_KEYS_KEY])


def test_a_session_works_on_while_its_keys_and_the_proxys_authority_rotate(
    ready: Instance,
) -> None:
    client = ready.client()
    assert client.bash("s1", "KEPT=yes").exit_code == 0
    assert client.bash("s1", READ_BY_THE_NEWEST).exit_code == 0, "there is only one yet"
    first_key, first_authority = keys(ready).keys, secret(ready, "proxy-ca")["ca.crt"]
    wanted = {names.ANNOTATION_ROTATE_SESSION_KEY: "today", names.ANNOTATION_ROTATE_PROXY_CA: "today"}
    patch = {"metadata": {"annotations": wanted}}
    resource = ("climcpinstance", ready.name)
    kubectl("-n", ready.namespace, "patch", *resource, "--type=merge", "-p", json.dumps(patch))
    eventually(lambda: secret(ready, "proxy-ca")["ca.crt"].endswith(first_authority), 30)
    eventually(lambda: keys(ready).keys[:-1] == first_key, 30)

    assert works(client)
    until = time.monotonic() + (PUBLICATION + MOUNTED).total_seconds()
    while client.bash("s1", READ_BY_THE_NEWEST).exit_code != 0 or not signs_anew(ready):
        assert works(client)
        assert time.monotonic() < until, "the newest authority does not sign"
        time.sleep(2)
    assert works(client)
    assert client.bash("s2", f"{READ}; {READ_BY_THE_NEWEST}").exit_code == 0, "a new session"
    for session in ("s1", "s2"):
        assert client.end(session).status_code == 204


def signs_anew(instance: Instance) -> bool:
    """Whether the newest session key is old enough to sign, and has been mounted for long."""
    return keys(instance).keys[-1].published_at + PUBLICATION + timedelta(seconds=5) <= datetime.now(UTC)


def test_the_old_session_key_goes_with_the_last_sandbox_that_knows_only_it(ready: Instance) -> None:
    (_, newest) = keys(ready).keys
    ready.apply({**ready.spec, "sandbox": {**ready.spec["sandbox"], "warmPoolSize": 0}})
    eventually(lambda: keys(ready).keys == (newest,), 60)
    published = ready.child("configmap", "cli-mcp-demo-session-keys")["data"]
    assert published.keys() == {f"{newest.kid}.pem"}
    assert ready.client().bash("s3", READ).exit_code == 0


def test_a_new_certificate_is_shown_and_connections_with_the_old_one_go_on(ready: Instance) -> None:
    before = ready.client()
    assert before.get("/live").ok
    ready.make_server_certificate()

    def is_shown() -> bool:
        assert before.get("/live").ok, "over the connection that it has"
        try:
            return ready.client().get("/live").ok
        except requests.exceptions.SSLError:
            return False

    eventually(is_shown, MOUNTED.total_seconds())
    assert before.get("/live").ok
