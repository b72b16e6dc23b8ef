"""Proxy and server roll, the allowlist changes and the credential rotates: no request of a session fails.

E2E_ROLLOUT_SECONDS says for how long (120).
"""

from __future__ import annotations

import itertools
import os
import time
from typing import TYPE_CHECKING

import pytest

from tests.e2e.instances import INVESTIGATOR
from tests.e2e.operator import eventually, kubectl
from tests.hooks.world import KUBERNETES

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.e2e.instances import Instance

SECONDS = float(os.environ.get("E2E_ROLLOUT_SECONDS", "120"))
SESSION = "kept"
REQUESTS_PER_CALL = 10
# curl ends with 18 when a chunked body breaks off, and with 0 after its last chunk.
# https://curl.se/libcurl/c/libcurl-errors.html#CURLEPARTIALFILE
WATCHES = """
for number in 1 2 3; do
  while true; do
    curl -sSN -o /dev/null --fail "$URL?watch=true" && echo ended >>watches || echo "broke off: $?" >>watches
  done &
done 2>>watch-errors
"""
REQUESTS = f"""
for number in $(seq {REQUESTS_PER_CALL}); do
  curl -sS -o /dev/null --fail --max-time 30 "$URL?limit=1" && echo ok
done
"""


@pytest.fixture(scope="module")
def ready(instance: Instance) -> Instance:
    instance.create({"replicas": 2, "proxy": KUBERNETES})
    instance.wait_for("Ready", 120)
    return instance


def with_allowed(instance: Instance, host: str) -> None:
    allowed = {"type": "allowlist", "domains": [host]}
    instance.apply({**instance.spec, "proxy": {"targets": [*KUBERNETES["targets"], allowed]}})


def proxies(instance: Instance) -> set[str]:
    return {pod["metadata"]["uid"] for pod in instance.component("proxy")}


def test_a_changed_allowlist_is_taken_up_by_the_proxies_that_run(ready: Instance) -> None:
    before, client = proxies(ready), ready.client()
    # Not refused any more, which needs no host that answers.
    asked = "curl -sS -o /dev/null -w '%{http_connect}' https://added.example.com || true"
    assert client.bash(SESSION, asked).stdout == "403"
    began = time.monotonic()
    with_allowed(ready, "added.example.com")
    eventually(lambda: client.bash(SESSION, asked).stdout == "200", 120)
    print(f"an allowlist that grew: {time.monotonic() - began:.1f} s until it holds")
    began = time.monotonic()
    with_allowed(ready, "another.example.com")
    eventually(lambda: client.bash(SESSION, asked).stdout == "403", 120)
    print(f"an allowlist that shrank: {time.monotonic() - began:.1f} s until it holds")
    assert proxies(ready) == before


def test_no_request_fails_and_no_watch_breaks_off_while_everything_rolls(ready: Instance) -> None:
    token, turn = ready.token(), itertools.count()
    url = f"https://kubernetes.default.svc/api/v1/namespaces/{ready.namespace}/configmaps"
    ready.client(token).bash(SESSION, f"cd /workspace; rm -f watches watch-errors; URL={url}\n{WATCHES}")

    def roll(deployment: str) -> Callable[[], None]:
        return lambda: _kubectl(ready, "rollout", "restart", f"deployment/{deployment}")

    changes: tuple[Callable[[], None], ...] = (
        roll(f"cli-mcp-{ready.name}-proxy"),
        lambda: with_allowed(ready, f"host-{next(turn)}.example.com"),
        roll(f"cli-mcp-{ready.name}"),
        lambda: ready.make_kubeconfig(ready.token(INVESTIGATOR)),
    )
    every = SECONDS / (2 * len(changes))
    upcoming = itertools.cycle(changes)
    began = time.monotonic()
    asked, answered, made = 0, 0, 0
    while (passed := time.monotonic() - began) < SECONDS:
        if passed >= made * every:
            next(upcoming)()
            made += 1
        answer = ready.client(token).bash(SESSION, REQUESTS)
        asked += REQUESTS_PER_CALL
        answered += answer.stdout.count("ok\n")
        assert answered == asked, f"{passed:.0f} s, after {made} changes: {answer.text}"
    for deployment in (f"cli-mcp-{ready.name}-proxy", f"cli-mcp-{ready.name}"):
        _kubectl(ready, "rollout", "status", f"deployment/{deployment}", "--timeout=120s")
    time.sleep(15)  # the proxies that went have heard of it
    seen = ready.client(token).bash(SESSION, "cat watches; cat watch-errors >&2; kill $(jobs -p)")
    ended = seen.stdout.count("ended\n")
    print(f"{asked} requests and {ended} ends of watches amid {made} changes: none failed")
    assert ended
    assert "broke off" not in seen.stdout, seen.text


def _kubectl(instance: Instance, *arguments: str) -> None:
    kubectl("-n", instance.namespace, *arguments)
