"""The overlay token-review on an installation: tokens are for one MCP server and of no use elsewhere."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
import yaml

from cli_mcp import names
from tests.e2e.operator import NAMESPACE, ROOT, Object, apply, eventually, kubectl
from tests.hooks.world import ALLOWLIST

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.e2e.instances import Instance

pytestmark = pytest.mark.skipif(
    os.environ.get("E2E_OPERATOR") == "processes", reason="no pods of the operator"
)

ROLLOUT_SECONDS = 120


@pytest.fixture(scope="module")
def ready(instance: Instance) -> Iterator[Instance]:
    with installed_with_the_overlay():
        instance.create({"sandbox": {"warmPoolSize": 1}, "proxy": ALLOWLIST})
        instance.wait_for("Ready", 120)
        yield instance


@contextmanager
def installed_with_the_overlay() -> Iterator[None]:
    """The patch of the overlay, and afterwards its opposite: every instance has its servers rolled twice."""
    overlay: Object = yaml.safe_load((ROOT / "config/overlays/token-review/kustomization.yaml").read_text())
    (patch,) = overlay["patches"]
    deployment = ("deployment", "metacontroller")
    kubectl("-n", NAMESPACE, "patch", *deployment, "--type=strategic", "-p", patch["patch"])
    rollout = ("-n", NAMESPACE, "rollout", "status", *deployment, f"--timeout={ROLLOUT_SECONDS}s")
    (variable,) = variables_of(yaml.safe_load(patch["patch"]))
    try:
        kubectl(*rollout)
        yield
    finally:
        kubectl("-n", NAMESPACE, "set", "env", "/".join(deployment), "-c", "hooks", f"{variable}-")
        kubectl(*rollout)


def variables_of(deployment: Object) -> list[str]:
    (hooks,) = deployment["spec"]["template"]["spec"]["containers"]
    return [it["name"] for it in hooks["env"]]


def with_audience(instance: Instance, audience: str, account: str = "") -> str:
    account = account or f"cli-mcp-{instance.name}-client"
    return kubectl("-n", instance.namespace, "create", "token", account, f"--audience={audience}").strip()


def own_audience(instance: Instance) -> str:
    return f"{names.GROUP}/{instance.namespace}/{instance.name}"


def status(instance: Instance, token: str) -> int:
    return instance.client(token).post("s1", "bash", command="echo hi").status_code


def test_a_token_for_this_server_calls_once_the_server_may_review_it(ready: Instance) -> None:
    token = with_audience(ready, own_audience(ready))
    assert status(ready, token) == 503, "before the admin's binding"
    bind_reviewer(ready)
    try:
        eventually(lambda: status(ready, token) == 200, 30)
        assert ready.client(token).bash("s1", "echo hi").stdout == "hi\n"
        for audience in ("https://kubernetes.default.svc", f"{names.GROUP}/{ready.namespace}/other"):
            assert status(ready, with_audience(ready, audience)) == 401
        assert status(ready, ready.token()) == 401, "one for the API server"
        assert status(ready, with_audience(ready, own_audience(ready), "investigator")) == 403
    finally:
        kubectl("delete", "clusterrolebinding", ready.namespace)


def bind_reviewer(instance: Instance) -> None:
    apply(
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": instance.namespace},
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "ClusterRole",
                "name": "system:auth-delegator",
            },
            "subjects": [
                {
                    "kind": "ServiceAccount",
                    "name": f"cli-mcp-{instance.name}",
                    "namespace": instance.namespace,
                }
            ],
        }
    )
