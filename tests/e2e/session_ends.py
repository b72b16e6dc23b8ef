"""Watches from outside when the sessions of a namespace end."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import requests

from cli_mcp import names
from tests.e2e.conftest import in_cluster
from tests.e2e.kube_client import KubeClient

if TYPE_CHECKING:
    from collections.abc import Iterator

# Longer than any test that looks on.
WATCH_SECONDS = 900


class SessionEnds:
    """Of each session when its pod was first seen to retire, in seconds of the monotonic clock."""

    def __init__(self) -> None:
        self._retired: dict[str, float] = {}
        self._changed = threading.Condition()

    def see(self, event: dict[str, Any]) -> None:
        metadata = event["object"]["metadata"]
        labels = metadata.get("labels", {})
        session = labels.get(names.LABEL_SESSION_ID)
        if session is None:
            return
        leaves = event["type"] == "DELETED" or "deletionTimestamp" in metadata
        if leaves or labels.get(names.LABEL_STATE) == names.STATE_RETIRING:
            with self._changed:
                self._retired.setdefault(session, time.monotonic())
                self._changed.notify_all()

    def has_ended(self, session: str) -> bool:
        return session in self._retired

    def wait_for(self, session: str, seconds: float) -> float:
        """When the session ended; AssertionError after `seconds`."""
        with self._changed:
            ended = self._changed.wait_for(lambda: self.has_ended(session), seconds)
        assert ended, f"{session} still there after {seconds} s"
        return self._retired[session]


@contextmanager
def watched_sessions(namespace: str) -> Iterator[SessionEnds]:
    """All sessions of the namespace, from now on."""
    ends = SessionEnds()
    with in_cluster() as api:
        kube = KubeClient(api.url, namespace)
        revision = kube.list("Pod").body["metadata"]["resourceVersion"]
        over = threading.Event()

        def watch() -> None:
            try:
                for event in kube.watch("Pod", WATCH_SECONDS, resourceVersion=revision):
                    ends.see(event)
            except requests.RequestException:
                if not over.is_set():
                    raise

        threading.Thread(target=watch, daemon=True).start()
        try:
            yield ends
        finally:
            over.set()
