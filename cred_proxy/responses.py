"""What a client gets: an origin's response as it is, or the proxy's own words."""

import aiohttp
from aiohttp import web

from cred_proxy.headers import Fields, response_fields
from cred_proxy.kubernetes_path import is_answered_with_objects
from cred_proxy.refusal import Refusal, Written
from cred_proxy.routes import KubernetesRoute, Route

_MAX_PHRASE_CHARACTERS = 100
# aiohttp adds these to every response without them.
_ADDED_NAMES = ("Server", "Date", "Content-Type")


class PassedBack(web.StreamResponse):
    """An origin's response head, with `more` fields; the body is written by the caller.

    The head is sent at once, unless it is known to go out together with a body that is there already.
    """

    def __init__(
        self, upstream: aiohttp.ClientResponse, more: Fields | None = None, *, with_body: bool = False
    ) -> None:
        fields = response_fields(list(upstream.headers.items())) + (more or [])
        super().__init__(status=upstream.status, reason=_printable(upstream.reason or ""), headers=fields)
        self._send_headers_immediately = not with_body
        self._foreign = [name for name in _ADDED_NAMES if name not in self.headers]

    async def _prepare_headers(self) -> None:
        await super()._prepare_headers()
        for name in self._foreign:
            self.headers.popall(name, None)


class OwnAnswer(web.Response):
    """A refusal, in the form that the client of the route shows to its user."""

    def __init__(self, refusal: Refusal, route: Route | None, path: str) -> None:
        """`path` is the request's as it was sent; one that cannot be told is empty."""
        written = _written(refusal, route, path)
        super().__init__(
            status=written.status,
            reason=refusal.answer.phrase,
            text=written.text,
            content_type=written.content_type,
        )

    async def _prepare_headers(self) -> None:
        await super()._prepare_headers()
        # Nobody needs to know what the proxy is made of.
        self.headers.popall("Server", None)


def _written(refusal: Refusal, route: Route | None, path: str) -> Written:
    if not isinstance(route, KubernetesRoute):
        return refusal.as_text
    if not path or is_answered_with_objects(path, route.server.path):
        return refusal.as_status_object
    return refusal.as_text_for_discovery


def _printable(phrase: str) -> str:
    return "".join(c for c in phrase if c.isascii() and c.isprintable())[:_MAX_PHRASE_CHARACTERS]
