"""Sandboxes of an admin's own images, to which an init container brings the agent.

E2E_SCRATCH_IMAGE and E2E_FOREIGN_IMAGE are what `make e2e` builds of tests/e2e/images.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from cli_mcp import names
from tests.e2e.instances import new_namespace
from tests.hooks.world import ALLOWLIST

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.e2e.instances import Instance
    from tests.e2e.mcp_client import McpClient

IMAGES = {"scratch": "E2E_SCRATCH_IMAGE", "foreign": "E2E_FOREIGN_IMAGE"}
READY_SECONDS = 120


@pytest.fixture(scope="module", params=IMAGES)
def custom(
    system: None, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Instance]:
    image = os.environ.get(IMAGES[request.param])
    if not image:
        pytest.skip(f"not set: {IMAGES[request.param]}")
    topic = f"{request.param}-image"
    with new_namespace(tmp_path_factory.mktemp(topic), topic) as instance:
        instance.create({"sandbox": {"image": image, "warmPoolSize": 1}, "proxy": ALLOWLIST})
        instance.wait_for("Ready", READY_SECONDS)
        yield instance


@pytest.fixture(scope="module")
def client(custom: Instance) -> McpClient:
    return custom.client()


def test_the_shell_is_the_images_own_and_keeps_its_state(custom: Instance, client: McpClient) -> None:
    image = custom.spec["sandbox"]["image"]
    (pod,) = custom.component("sandbox")
    assert [it["image"] for it in pod["spec"]["containers"]] == [image]
    assert client.bash("s1", "cd /tmp; export WHO=me; shopt -q login_shell; echo $BASH").exit_code == 0
    answer = client.bash("s1", 'echo "$WHO in $PWD with $BASH_VERSINFO"')
    assert answer.stdout.startswith("me in /tmp with 5")


def test_output_input_and_exit_codes_are_exact(client: McpClient) -> None:
    answer = client.bash("s1", r"printf 'one\0two'; printf err >&2; (exit 7)")
    assert (answer.stdout, answer.structured["stderr"], answer.exit_code) == ("one\0two", "err", 7)


def test_a_timeout_ends_the_command_and_not_the_shell(client: McpClient) -> None:
    client.bash("s1", "KEPT=yes")
    assert client.bash("s1", "sleep 60", timeout=1).structured["timed_out"]
    assert client.bash("s1", 'echo "$KEPT"').stdout == "yes\n"


def test_the_agent_borrows_nothing_from_the_image(custom: Instance, client: McpClient) -> None:
    """All that process 1 has mapped comes from the bundle; the shell itself may not look."""
    answer = client.bash("s1", "cat /proc/1/maps; ls /opt/cli-mcp/bin; echo x >/opt/cli-mcp/bin/python3")
    assert answer.exit_code != 0
    assert "python3\nsandbox-agent\n" in answer.stdout
    assert "/opt" not in answer.stdout.partition("python3")[0]
    (pod,) = [
        it
        for it in custom.component("sandbox")
        if it["metadata"]["labels"].get(names.LABEL_SESSION_ID) == "s1"
    ]
    assert pod["status"]["containerStatuses"][0]["restartCount"] == 0
