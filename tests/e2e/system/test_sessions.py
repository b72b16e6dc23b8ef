"""Sessions of three replicas: one pod each, whoever is asked, and what is said when there is none."""

from __future__ import annotations

import asyncio
import json
import os
import re
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cli_mcp import names
from tests.e2e.instances import merged
from tests.e2e.operator import apply, eventually, kubectl
from tests.e2e.running_call import UNTIL_INTERRUPTED, running_call
from tests.hooks.world import ALLOWLIST

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.e2e.instances import Instance
    from tests.e2e.mcp_client import McpClient
    from tests.e2e.operator import Object
    from tests.e2e_local.harness import Answer

SESSIONS = 60
# All pods of a burst start on one small node; a call waits a minute for its own, and then asks again.
BURST_SECONDS = 240
SPEC: Object = {"replicas": 3, "proxy": ALLOWLIST, "sandbox": {"warmPoolSize": 2}}
# How long after a change in the cluster all replicas have seen it.
WATCH_SECONDS = 1
COUNT = "COUNT=$((COUNT + 1)); echo $COUNT"


@pytest.fixture(scope="module")
def token(ready: Instance) -> str:
    return ready.token()


@pytest.fixture(scope="module")
def ready(instance: Instance) -> Instance:
    instance.create(SPEC)
    instance.wait_for("Ready", 120)
    eventually(lambda: len(instance.replicas("")) == 3)
    return instance


@pytest.fixture
def replicas(ready: Instance, token: str) -> list[McpClient]:
    return ready.replicas(token)


@contextmanager
def changed(instance: Instance, change: Object) -> Iterator[None]:
    """The instance with something else in its spec until the end, as the server knows it by its watch."""
    spec = instance.spec
    apply_and_wait(instance, merged(spec, change))
    try:
        yield
    finally:
        apply_and_wait(instance, spec)


def apply_and_wait(instance: Instance, spec: Object) -> None:
    instance.apply(spec)

    def is_observed() -> bool:
        found = instance.instance()
        return bool(found["status"]["observedGeneration"] == found["metadata"]["generation"])

    eventually(is_observed, 30)
    time.sleep(WATCH_SECONDS)


def patiently(client: McpClient, session: str, command: str, seconds: float = BURST_SECONDS) -> Answer:
    """The first answer that is not about a sandbox which has not started yet."""
    deadline = time.monotonic() + seconds
    while True:
        answer = client.bash(session, command)
        if "has not started yet" not in answer.text or time.monotonic() > deadline:
            return answer


def end(client: McpClient, *sessions: str) -> None:
    with ThreadPoolExecutor(8) as threads:
        assert {it.status_code for it in threads.map(client.end, sessions)} == {204}


def sessions_with_pods(instance: Instance) -> Counter[str]:
    """How many pods each session has that are not on their way out."""
    labels = [it["metadata"]["labels"] for it in instance.component("sandbox")]
    return Counter(it[names.LABEL_SESSION_ID] for it in labels if names.LABEL_SESSION_ID in it)


def test_a_burst_of_sessions_asked_through_two_replicas_each_gets_one_pod_each(
    ready: Instance, replicas: list[McpClient], token: str
) -> None:
    sessions = [f"burst-{number}" for number in range(SESSIONS)]
    hosts = [it.url.removeprefix("https://") for it in replicas]
    barrier = threading.Barrier(2 * SESSIONS)

    def ask(number: int) -> Answer:
        """One of two callers of a session: the first and the second half ask different replicas."""
        client = ready.client(token, hosts[(number + number // SESSIONS) % len(hosts)])
        barrier.wait()
        return patiently(client, sessions[number % SESSIONS], COUNT)

    with ThreadPoolExecutor(2 * SESSIONS) as threads:
        answers = list(threads.map(ask, range(2 * SESSIONS)))
    wrong = [it.text for it in answers if it.is_error]
    assert not wrong, wrong
    for first, second in zip(answers[:SESSIONS], answers[SESSIONS:], strict=True):
        assert {first.stdout, second.stdout} == {"1\n", "2\n"}, "both in one shell"
    assert sessions_with_pods(ready) == dict.fromkeys(sessions, 1)
    for number, session in enumerate(sessions):
        answer = replicas[(number + 2) % 3].bash(session, COUNT)
        assert (answer.stdout, answer.structured["session"]) == ("3\n", "continued")
    end(replicas[0], *sessions)
    eventually(lambda: not sessions_with_pods(ready), 60)


def test_a_warm_call_asks_the_kubernetes_api_nothing(replicas: list[McpClient]) -> None:
    """By the server's own count, which its watches are no part of; whether its caller may call it asks again
    every ten seconds."""
    client = replicas[0]
    patiently(client, "warm", "true")
    before = requests_made(client)
    for _ in range(40):
        assert client.bash("warm", "true").exit_code == 0
    assert requests_made(client) == before
    end(client, "warm")


def requests_made(client: McpClient) -> dict[str, float]:
    """To the Kubernetes API about pods, by method; a watch is one for each time that it is begun."""
    text = client.get("/metrics").text
    found = re.findall(r'cli_mcp_kubernetes_requests_total\{method="(\w+)"\} (\S+)', text)
    assert found, text
    return {method: float(count) for method, count in found if method != "WATCH"}


def test_a_warm_call_is_no_request_in_the_api_servers_audit_log(
    ready: Instance, replicas: list[McpClient]
) -> None:
    log = os.environ.get("E2E_AUDIT_LOG")
    if not log:
        pytest.skip("not set: E2E_AUDIT_LOG, the file in which the API server writes all requests")
    client = replicas[0]
    patiently(client, "audited", "true")
    with Path(log).open() as lines:
        lines.seek(0, os.SEEK_END)
        begin = time.monotonic()
        for _ in range(40):
            client.bash("audited", "true")
        seconds = time.monotonic() - begin
        time.sleep(1)
        seen = [request(line) for line in lines if line.endswith("\n")]
    account = f"system:serviceaccount:{ready.namespace}:cli-mcp-{ready.name}"
    assert not [it for it in seen if it[0] == account and it[1] not in ("watch",)]
    reviews = [it for it in seen if it[0] == f"{account}-client"]
    assert len(reviews) <= 2 * (1 + seconds / 10), "who it is and whether it may, every ten seconds"
    end(client, "audited")


def request(line: str) -> tuple[str, str]:
    """Who asked for what."""
    event = json.loads(line)
    return event["user"]["username"], event["verb"]


def test_a_session_whose_pod_is_deleted_begins_anew_and_says_so(
    ready: Instance, replicas: list[McpClient]
) -> None:
    patiently(replicas[0], "lost", COUNT)
    with running_call(ready, replicas[0], "lost", "sleep 120") as running:
        delete_pod(ready, "lost")
        cut_off = running.result(60)
    assert cut_off.is_error
    assert "its sandbox was deleted" in cut_off.text
    assert "the next call begins anew" in cut_off.text
    answer = patiently(replicas[1], "lost", COUNT)
    assert (answer.stdout, answer.structured["session"]) == ("1\n", "new")
    assert "[new session]" in answer.text
    end(replicas[0], "lost")


def delete_pod(instance: Instance, session: str) -> None:
    for pod in instance.session_pods(session):
        kubectl("-n", instance.namespace, "delete", "pod", pod["metadata"]["name"], "--wait=false")


@pytest.mark.parametrize("meta", [{}, {"progressToken": 1}], ids=["silently", "while it is told of progress"])
async def test_a_client_that_hangs_up_interrupts_its_command(replicas: list[McpClient], meta: Object) -> None:
    await asyncio.to_thread(patiently, replicas[0], "hung-up", "rm -f seen")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(3):
            await call(replicas[0], "hung-up", UNTIL_INTERRUPTED, meta)
    answer = replicas[1].bash("hung-up", "cat seen", 30)
    assert answer.stdout == "interrupted\n"
    end(replicas[0], "hung-up")


async def call(client: McpClient, session: str, command: str, meta: Object) -> None:
    params = {"name": "bash", "arguments": {"command": command, "timeout": 120}, "_meta": meta}
    headers = client.headers(session) | {"Accept": "application/json, text/event-stream"}
    async with client.http(headers=headers, timeout=120) as http:
        request = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        await http.post(f"{client.url}/mcp", json=request)


@pytest.mark.parametrize(
    ("limit", "whose"), [("maxSessions", "of this instance"), ("maxSessionsPerOwner", "of yours")]
)
def test_more_sessions_than_allowed_are_refused_at_every_replica(
    ready: Instance, replicas: list[McpClient], limit: str, whose: str
) -> None:
    """Four ask at once where two may."""
    with changed(ready, {"sandbox": {limit: 2}}):
        asked = [f"limit-{number}" for number in range(4)]
        with ThreadPoolExecutor(4) as threads:
            clients = [*replicas, replicas[0]]
            answers = list(threads.map(patiently, clients, asked, ["echo in"] * 4))
        let_in = [session for session, it in zip(asked, answers, strict=True) if not it.is_error]
        refusals = [it.text for it in answers if it.is_error]
        assert len(let_in) == 2, refusals
        assert all(f"as many sessions {whose} are open as may be ({limit}: 2)" in it for it in refusals), (
            refusals
        )
        end(replicas[0], let_in[0])
        refused = next(it for it in asked if it not in let_in)
        assert patiently(replicas[1], refused, "echo in").stdout == "in\n", "there is room again"
        end(replicas[0], refused, let_in[1])


def test_what_a_quota_refuses_is_quoted(ready: Instance, replicas: list[McpClient]) -> None:
    quota: Object = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "full", "namespace": ready.namespace},
        "spec": {"hard": {"pods": "0"}},
    }
    with changed(ready, {"sandbox": {"warmPoolSize": 0}}):
        eventually(lambda: not ready.component("sandbox"))
        apply(quota)
        eventually(lambda: "hard" in ready.child("resourcequota", "full").get("status", {}))
        answer = replicas[0].bash("over-quota", "true")
        kubectl("-n", ready.namespace, "delete", "resourcequota", "full")
    assert answer.is_error
    assert "Kubernetes refused to make one" in answer.text
    assert "exceeded quota: full" in answer.text


BAD_SANDBOXES = [
    pytest.param(
        {"image": "localhost/there-is-no:such"},
        "its image, which cannot be pulled",
        "localhost/there-is-no",
        id="image",
    ),
    pytest.param({"nodeSelector": {"no": "where"}}, "a node", "node affinity/selector", id="node"),
]


@pytest.mark.parametrize(("sandbox", "what", "quoted"), BAD_SANDBOXES)
def test_why_a_sandbox_cannot_start_is_quoted(
    ready: Instance, replicas: list[McpClient], sandbox: Object, what: str, quoted: str
) -> None:
    with changed(ready, {"sandbox": {"warmPoolSize": 0, **sandbox}}):
        eventually(lambda: not ready.component("sandbox"))
        answer = replicas[0].bash("never", "true")
        assert answer.is_error
        assert f"waits for {what}" in answer.text
        assert quoted in answer.text
        end(replicas[0], "never")


def test_a_closed_gate_says_what_it_waits_for_and_lets_sessions_be(
    ready: Instance, replicas: list[McpClient]
) -> None:
    patiently(replicas[0], "before", COUNT)
    with changed(ready, {"proxy": {"targets": [{"type": "kubernetes", "secretName": "to-come"}]}}):
        answer = replicas[1].bash("too-early", "true")
        assert answer.is_error
        assert answer.text == (
            "Not run: no sandbox can be had now: the kubernetes target has no usable kubeconfig yet."
        )
        assert replicas[2].bash("before", COUNT).stdout == "2\n"
    end(replicas[0], "before")
