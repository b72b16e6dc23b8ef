"""Kubernetes watches: which response is one, where it may end, and how all of them end when the proxy does.

A client resumes a watch that ends after a whole event from the last one that it saw; one that breaks off is
an error to it (https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes).
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol
from urllib.parse import parse_qs

import aiohttp

from cred_proxy.request import Forward
from cred_proxy.routes import KubernetesRoute, Route
from cred_proxy.upstream import next_chunk

_OK = 200
# As the API server reads a boolean in a query.
_NOT = ("", "0", "false")
_LENGTH_BYTES = 4


class Frames(Protocol):
    """Follows the bytes of a stream of events."""

    @property
    def between(self) -> bool:
        """Whether what was seen ends with a whole event."""

    def feed(self, data: bytes) -> None: ...


class JsonLines:
    """One event a line."""

    def __init__(self) -> None:
        self.between = True

    def feed(self, data: bytes) -> None:
        self.between = data.endswith(b"\n") if data else self.between


class LengthPrefixed:
    """Each event after its length, four bytes in network order, as with protobuf."""

    def __init__(self) -> None:
        self._prefix = b""
        self._missing = 0

    @property
    def between(self) -> bool:
        return not self._prefix and not self._missing

    def feed(self, data: bytes) -> None:
        position = 0
        while position < len(data):
            if self._missing:
                taken = min(self._missing, len(data) - position)
                self._missing -= taken
                position += taken
                continue
            taken = min(_LENGTH_BYTES - len(self._prefix), len(data) - position)
            self._prefix += data[position : position + taken]
            position += taken
            if len(self._prefix) == _LENGTH_BYTES:
                self._missing, self._prefix = int.from_bytes(self._prefix, "big"), b""


_FRAMES: dict[str, type[JsonLines] | type[LengthPrefixed]] = {
    "application/json": JsonLines,
    "application/vnd.kubernetes.protobuf": LengthPrefixed,
}


def is_watch(route: Route, forward: Forward) -> bool:
    """Whether a request asks for events without end."""
    if not isinstance(route, KubernetesRoute) or forward.method != "GET":
        return False
    given = parse_qs(forward.query).get("watch", [""])[0]
    return given.lower() not in _NOT


def frames_of(response: aiohttp.ClientResponse) -> Frames | None:
    """How the events of a watch's response are told apart; None where it may not end before its own end."""
    headers = response.headers
    if response.status != _OK or "Content-Length" in headers or "Content-Encoding" in headers:
        return None
    media_type = headers.get("Content-Type", "").partition(";")[0].strip().lower()
    frames = _FRAMES.get(media_type)
    return frames() if frames else None


class Watch:
    """The body of one, chunk by chunk."""

    def __init__(self, frames: Frames, *, ending: bool) -> None:
        self._frames = frames
        self._ending = ending
        self._waiting: asyncio.Timeout | None = None

    def feed(self, data: bytes) -> None:
        """What was passed on already."""
        self._frames.feed(data)

    async def next_chunk(self, content: aiohttp.StreamReader) -> bytes:
        """What has come, b"" at the end of the stream or, once it is to end, of an event. Raises one of
        FAILURES."""
        if self._may_end:
            return b""
        try:
            self._waiting = asyncio.timeout(None)
            async with self._waiting:
                chunk = await next_chunk(content)
        except TimeoutError:
            if not (self._waiting and self._waiting.expired()):
                raise  # the origin's
            return b""
        finally:
            self._waiting = None
        self._frames.feed(chunk)
        return chunk

    def end(self) -> None:
        """With the event that is on its way, if there is one."""
        self._ending = True
        if self._may_end and self._waiting is not None and not self._waiting.expired():
            self._waiting.reschedule(asyncio.get_running_loop().time())

    @property
    def _may_end(self) -> bool:
        return self._ending and self._frames.between


class Watches:
    """Those that are open."""

    def __init__(self) -> None:
        self._open: set[Watch] = set()
        self._ending = False

    @contextmanager
    def opened(self, frames: Frames) -> Iterator[Watch]:
        watch = Watch(frames, ending=self._ending)
        self._open.add(watch)
        try:
            yield watch
        finally:
            self._open.discard(watch)

    def end(self) -> None:
        """Those that are open and those to come, each after a whole event."""
        self._ending = True
        for watch in self._open:
            watch.end()
