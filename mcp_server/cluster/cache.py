"""The instance's sandbox pods as the watch last showed them, found by uid and by session."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from mcp_server.cluster.pods import SandboxPod


class PodCache:
    """Also takes the answers to our own writes, which are often here before the watch has them.

    Revisions are compared as numbers, so that an answer that was overtaken by the watch changes nothing.
    `on_gone` is told the uid of every pod that is not there any more.
    """

    def __init__(self, on_gone: Callable[[str], None] = lambda uid: None) -> None:
        self._pods: dict[str, SandboxPod] = {}
        self._by_session: defaultdict[str, dict[str, SandboxPod]] = defaultdict(dict)
        self._watchers: defaultdict[str, set[asyncio.Event]] = defaultdict(set)
        self._revision = 0
        self._on_gone = on_gone

    def __iter__(self) -> Iterator[SandboxPod]:
        return iter(self._pods.values())

    def __len__(self) -> int:
        return len(self._pods)

    def get(self, uid: str) -> SandboxPod | None:
        return self._pods.get(uid)

    def usable(self, session_id: str) -> SandboxPod | None:
        """The session's pod that may get a command."""
        pods = self._by_session.get(session_id, {})
        return next((pod for pod in pods.values() if pod.usable), None)

    def replace(self, pods: Iterable[SandboxPod], revision: str) -> None:
        """What a list at `revision` showed; newer answers to our own writes stay."""
        listed = {pod.uid: pod for pod in pods}
        for uid, pod in list(self._pods.items()):
            if uid not in listed and int(pod.revision) <= int(revision):
                self._forget(uid)
        for pod in listed.values():
            self._keep(pod)
        self._revision = max(self._revision, int(revision))

    def watched(self, pod: SandboxPod) -> None:
        """An event of the watch that shows `pod`."""
        self._keep(pod)
        self._revision = max(self._revision, int(pod.revision))

    def deleted(self, pod: SandboxPod) -> None:
        """An event of the watch: gone, or out of its selector."""
        self._forget(pod.uid)
        self._revision = max(self._revision, int(pod.revision))

    def written(self, pod: SandboxPod) -> None:
        """The answer to a write of ours. Older than the watch and unknown: it has been deleted since."""
        if pod.uid in self._pods or int(pod.revision) > self._revision:
            self._keep(pod)

    @contextmanager
    def changes(self, uid: str) -> Iterator[asyncio.Event]:
        """An event that is set whenever the pod changes or goes."""
        event = asyncio.Event()
        self._watchers[uid].add(event)
        try:
            yield event
        finally:
            self._watchers[uid].discard(event)
            if not self._watchers[uid]:
                del self._watchers[uid]

    def _keep(self, pod: SandboxPod) -> None:
        before = self._pods.get(pod.uid)
        if before is not None and int(before.revision) >= int(pod.revision):
            return
        if before is not None and before.session_id != pod.session_id:
            self._forget_session(before)
        self._pods[pod.uid] = pod
        if pod.session_id:
            self._by_session[pod.session_id][pod.uid] = pod
        self._wake(pod.uid)

    def _forget(self, uid: str) -> None:
        pod = self._pods.pop(uid, None)
        if pod is None:
            return
        self._forget_session(pod)
        self._wake(uid)
        self._on_gone(uid)

    def _forget_session(self, pod: SandboxPod) -> None:
        pods = self._by_session.get(pod.session_id)
        if pods is not None:
            pods.pop(pod.uid, None)
            if not pods:
                del self._by_session[pod.session_id]

    def _wake(self, uid: str) -> None:
        for event in self._watchers.get(uid, ()):
            event.set()
