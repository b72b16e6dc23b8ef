"""The API over HTTP: a real socket for real clients in front of an in-memory `Api`.

Bearer tokens name users; without any tokens configured everybody is admin. Watches stream until their
timeout. The garbage collector runs shortly after each change when `collects_garbage` is on, as it does in a
cluster.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import orjson
import yaml
from aiohttp import web

from tests.kube import discovery, errors, garbage, reviews, selectors, watch_stream
from tests.kube.api import Api
from tests.kube.clock import wall_clock
from tests.kube.deletion import DeleteOptions
from tests.kube.objects import Object, metadata, name_of, namespace_of
from tests.kube.patch import APPLY
from tests.kube.rbac import ADMIN, Attributes, User, service_account
from tests.kube.routes import Route, parse

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Mapping

    from tests.kube.resources import Resource
    from tests.kube.storage import Change

MAX_BODY_BYTES = 3 * 1024 * 1024  # the real server's limit
# https://kubernetes.io/docs/reference/command-line-tools-reference/feature-gates, APIResponseCompression
COMPRESSED_FROM_BYTES = 128 * 1024
_SUBRESOURCES = frozenset(("", "status", "binding", "finalize"))
# What typed Go clients prefer; only JSON is spoken here.
PROTOBUF = "application/vnd.kubernetes.protobuf"


class Server:
    """Use `running` to start one; `url` is there while it runs."""

    def __init__(
        self,
        api: Api | None = None,
        tokens: Mapping[str, User] | None = None,
        *,
        collects_garbage: bool = True,
    ) -> None:
        self.api = api or Api(wall_clock)
        self.tokens = dict(tokens or {})
        self.url = ""
        self._collects_garbage = collects_garbage
        self._collecting = False
        self._watchers: set[asyncio.Event] = set()
        self._loop: asyncio.AbstractEventLoop | None = None

    def app(self) -> web.Application:
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.router.add_route("*", "/{path:.*}", self._handle)
        return app

    @asynccontextmanager
    async def running(self, tls: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
        """Listen on a free port of 127.0.0.1."""
        self._loop = asyncio.get_running_loop()
        self.api.storage.listeners.append(self._on_change)
        # A watch whose client has gone must end.
        runner = web.AppRunner(self.app(), shutdown_timeout=0.1, handler_cancellation=True)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
            await site.start()
            host, port = runner.addresses[0][:2]
            self.url = f"{'https' if tls else 'http'}://{host}:{port}"
            yield self
        finally:
            self.api.storage.listeners.remove(self._on_change)
            await runner.cleanup()

    def _on_change(self, change: Change) -> None:
        """From whatever thread the store was written."""
        assert self._loop is not None
        with suppress(RuntimeError):  # the loop has just been closed: nobody watches any more
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        for watcher in self._watchers:
            watcher.set()
        if self._collects_garbage and not self._collecting and self._loop is not None:
            self._collecting = True
            self._loop.call_soon(self._collect)

    def _collect(self) -> None:
        self._collecting = False
        garbage.step(self.api)

    # --- requests -----------------------------------------------------------------------------------------

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        try:
            response = await self._answer(request)
        except errors.ApiError as error:
            response = _json(error.status(), status=error.code)
        if _is_long(response) and "gzip" in request.headers.get("Accept-Encoding", ""):
            response.enable_compression(web.ContentCoding.gzip)
        return response

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if request.path in ("/healthz", "/livez", "/readyz"):
            return web.Response(text="ok")
        user = self._user(request)
        described = discovery.describe(request.path, self.api.registry) if request.method == "GET" else None
        if described is not None:
            return _json(described)
        route = parse(request.path)
        if route is None or route.subresource not in _SUBRESOURCES:
            raise errors.no_such_path()
        group = route.api_version.rpartition("/")[0]
        if (group, route.plural) in reviews.REVIEWS and request.method == "POST":
            body = await _body(request)
            bindings = self.api.bindings()
            done = reviews.review(group, route.plural, body, user, bindings, self.tokens)
            return _json(done, status=201)
        resource = self.api.registry.by_plural(route.api_version, route.plural)
        if request.method == "GET" and not route.name and watch_stream.is_true(request.query.get("watch")):
            return await self._watch(request, route, resource, user)
        return await self._request(request, route, resource, user)

    def _user(self, request: web.Request) -> User:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if not self.tokens:
            user = ADMIN
        elif scheme.lower() == "bearer" and token in self.tokens:
            user = self.tokens[token]
        else:
            raise errors.unauthorized()
        wanted = request.headers.get("Impersonate-User")
        return self._impersonated(user, wanted) if wanted else user

    def _impersonated(self, user: User, wanted: str) -> User:
        if not self.api.is_allowed(user, Attributes("impersonate", "", "users", "", wanted)):
            raise errors.ApiError(
                403, "Forbidden", f'users "{wanted}" is forbidden: User "{user.name}" cannot impersonate'
            )
        match wanted.split(":"):
            case ["system", "serviceaccount", namespace, name]:
                return service_account(namespace, name)
        return User(wanted)

    async def _request(
        self, request: web.Request, route: Route, resource: Resource, user: User
    ) -> web.StreamResponse:
        api, name, namespace = self.api, route.name, route.namespace
        manager = (
            request.query.get("fieldManager")
            or request.headers.get("User-Agent", "unknown").partition("/")[0]
        )
        dry_run = "dryRun" in request.query
        match request.method, bool(name):
            case "GET", True:
                return _json(api.get(resource, namespace, name, user=user))
            case "GET", False:
                return _json(self._list(request, route, resource, user))
            case "POST", False:
                body = _placed(await _body(request), route, resource)
                created = api.create(body, user=user, manager=manager, dry_run=dry_run)
                return _json(created, status=201)
            case "POST", True if route.subresource == "binding":
                body = await _body(request)
                api.bind(namespace, name, (body.get("target") or {}).get("name", ""), user=user)
                return _json(_success(), status=201)
            case "PUT", True:
                body = _placed(await _body(request), route, resource)
                if route.subresource == "finalize":
                    api.finalize_namespace(name, user=user)
                    return _json(body)
                return _json(api.update(body, route.subresource, user=user, manager=manager, dry_run=dry_run))
            case "PATCH", True:
                patch = await _body(request)
                return _json(
                    api.patch(
                        resource,
                        namespace,
                        name,
                        patch,
                        request.content_type,
                        route.subresource,
                        user=user,
                        manager=manager,
                        dry_run=dry_run,
                    )
                )
            case "DELETE", True:
                options = _delete_options(request, await _body(request))
                deleted = api.delete(resource, namespace, name, options, user=user, dry_run=dry_run)
                gone = api.find(resource.qualified, namespace, name) is None
                return _json(
                    _success(resource, deleted) if gone and not resource.returns_deleted else deleted
                )
            case "DELETE", False:
                return _json(self._delete_collection(request, route, resource, user))
        raise errors.ApiError(
            405, "MethodNotAllowed", "the server does not allow this method on the requested resource"
        )

    def _list(self, request: web.Request, route: Route, resource: Resource, user: User) -> Object:
        query = request.query
        exact = query.get("resourceVersionMatch") == "Exact"
        page = self.api.list(
            resource,
            route.namespace,
            _selection(request),
            limit=int(query.get("limit") or 0),
            token=query.get("continue", ""),
            at=int(query["resourceVersion"]) if exact else None,
            user=user,
        )
        meta: Object = {"resourceVersion": page.revision}
        if page.token:
            meta.update({"continue": page.token, "remainingItemCount": page.remaining})
        items = [
            {key: value for key, value in it.items() if key not in ("kind", "apiVersion")}
            for it in page.items
        ]
        shown = page.items if resource.is_custom else items  # items of a typed list do not repeat their kind
        return {
            "kind": f"{resource.kind}List",
            "apiVersion": resource.api_version,
            "metadata": meta,
            "items": shown,
        }

    def _delete_collection(
        self, request: web.Request, route: Route, resource: Resource, user: User
    ) -> Object:
        for obj in self.api.list(resource, route.namespace, _selection(request), user=user).items:
            self.api.delete(resource, namespace_of(obj), name_of(obj), user=user)
        return _success()

    # --- watches ------------------------------------------------------------------------------------------

    async def _watch(
        self, request: web.Request, route: Route, resource: Resource, user: User
    ) -> web.StreamResponse:
        selection = _selection(request)
        asked = Attributes("watch", resource.group, resource.plural, route.namespace, selection.name)
        if not self.api.is_allowed(user, asked):
            raise errors.forbidden(
                resource, "", f'User "{user.name}" cannot watch resource "{resource.plural}"'
            )
        wanted = watch_stream.Wanted.from_query(resource, route.namespace, selection, request.query)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        woken = asyncio.Event()
        self._watchers.add(woken)
        try:
            async for event in watch_stream.stream(self.api.storage, wanted, woken):
                await response.write(orjson.dumps(event) + b"\n")
        except ConnectionResetError:
            pass  # the watcher has gone
        finally:
            self._watchers.discard(woken)
        return response


def _json(body: Any, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(body), status=status, content_type="application/json")


def _is_long(response: web.StreamResponse) -> bool:
    if not isinstance(response, web.Response) or not isinstance(response.body, bytes):
        return False
    return len(response.body) > COMPRESSED_FROM_BYTES


async def _body(request: web.Request) -> Any:
    if request.content_type == PROTOBUF:
        raise errors.unsupported_media_type(PROTOBUF)
    text = await request.text()
    if not text:
        return {}
    try:
        return yaml.safe_load(text) if request.content_type == APPLY else json.loads(text)
    except (ValueError, yaml.YAMLError) as error:
        raise errors.bad_request(f"couldn't get version/kind; json parse error: {error}") from error


def _placed(body: Any, route: Route, resource: Resource) -> Object:
    """The object under the identity that the path gives it; a body that says otherwise is 400."""
    if not isinstance(body, dict):
        raise errors.bad_request("the body is not an object")
    if (body.get("apiVersion"), body.get("kind")) not in (
        (None, None),
        (resource.api_version, resource.kind),
    ):
        raise errors.bad_request(f"{body.get('kind')} does not match {resource.kind} of the request")
    meta = dict(metadata(body))
    if meta.get("namespace") not in (None, "", route.namespace):
        raise errors.bad_request(
            "the namespace of the provided object does not match the namespace sent on the request"
        )
    if route.name and meta.get("name") != route.name:
        raise errors.bad_request("the name of the object does not match the name on the URL")
    if route.namespace:
        meta["namespace"] = route.namespace
    return {**body, "apiVersion": resource.api_version, "kind": resource.kind, "metadata": meta}


def _selection(request: web.Request) -> selectors.Selection:
    return selectors.Selection(
        selectors.parse_labels(request.query.get("labelSelector", "")),
        selectors.parse_fields(request.query.get("fieldSelector", "")),
    )


def _delete_options(request: web.Request, body: Object) -> DeleteOptions:
    """From the body, or from the query where the body says nothing."""
    merged = dict(body)
    if "propagationPolicy" in request.query:
        merged.setdefault("propagationPolicy", request.query["propagationPolicy"])
    if "gracePeriodSeconds" in request.query:
        merged.setdefault("gracePeriodSeconds", int(request.query["gracePeriodSeconds"]))
    return DeleteOptions.from_json(merged)


def _success(resource: Resource | None = None, obj: Object | None = None) -> Object:
    status: Object = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
    if resource is not None and obj is not None:
        details = {"name": name_of(obj), "kind": resource.plural, "uid": metadata(obj)["uid"]}
        status["details"] = {**details, "group": resource.group} if resource.group else details
    return status
