"""The whole web application: routes, pages, metrics, and the guard around all of them."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus

from fastapi import Depends, FastAPI, Response
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tablekeeper.errors import TablekeeperError
from tablekeeper.runtime import Runtime
from tablekeeper.server.api.administration import AdminCalls
from tablekeeper.server.api.gathered_submits import GatheredSubmits
from tablekeeper.server.api.guards import INTERFACE, RateLimit, RequestGuard
from tablekeeper.server.api.overview import OverviewCalls
from tablekeeper.server.api.permissions import Gate
from tablekeeper.server.api.rest import RestCalls, needs, rest_application
from tablekeeper.server.api.rpc import RpcCalls
from tablekeeper.server.api.writers import WriterCalls
from tablekeeper.server.dashboard.pages import add_dashboard
from tablekeeper.server.model import Role
from tablekeeper.server.observe.metrics import CONTENT_TYPE, ServiceMetrics
from tablekeeper.server.places import AllowedPlaces
from tablekeeper.server.settings import ServerSettings
from tablekeeper.server.store.database import DATABASE_AWAY
from tablekeeper.server.store.protocol import JobStore
from tablekeeper.server.timelines import TableTimelines
from tablekeeper.tracing import span

__all__ = ["Web", "build_web"]


class Web:
    """The HTTP application, bare as `app` and behind its guard, and the calls for gRPC."""

    def __init__(self, app: FastAPI, guarded: ASGIApp, rpc: RpcCalls) -> None:
        self.app = app
        self.guarded = guarded
        self.rpc = rpc


def build_web(
    store: JobStore,
    settings: ServerSettings,
    metrics: ServiceMetrics,
    runtime: Runtime,
    *,
    engines: frozenset[str],
    timelines: TableTimelines | None = None,
) -> Web:
    """Compose it. `engines` are the names of this service's engines, `timelines` the open tables of its loops."""
    gate = Gate(store, runtime.clock)
    places = AllowedPlaces(settings.allow)
    timelines = timelines or TableTimelines(settings.storage_options, runtime, places)
    writers = WriterCalls(store, places, timelines, engines=engines)
    admin = AdminCalls(store, places, timelines, runtime.ids, settings.limits)
    overview = OverviewCalls(store, timelines.summary)
    app = rest_application(
        RestCalls(gate, writers, GatheredSubmits(store, writers), admin, overview, is_ready=_readiness(store))
    )
    for_metrics = needs(Role.VIEWER, of_the_lake="metrics")
    app.add_api_route("/metrics", _metrics_route(metrics), dependencies=[Depends(for_metrics)], tags=["service"])
    add_dashboard(app, timelines=timelines, runtime=runtime)
    app.add_middleware(_Measured, metrics=metrics, runtime=runtime)
    rate = RateLimit(per_second=settings.limits.requests_per_s, burst=settings.limits.request_burst, runtime=runtime)
    guarded = RequestGuard(
        _HeadAsGet(app), gate=gate, rate=rate, body_bytes=settings.limits.body_bytes, body_s=settings.limits.body_s
    )
    return Web(app, guarded, RpcCalls(gate, rate, writers, admin))


def _readiness(store: JobStore) -> Callable[[], bool]:
    def is_ready() -> bool:
        try:
            store.now_ms()
        except (TablekeeperError, *DATABASE_AWAY):
            return False
        return True

    return is_ready


def _metrics_route(metrics: ServiceMetrics) -> Callable[[], Response]:
    def show_metrics() -> Response:
        """Metrics for Prometheus."""
        return Response(metrics.exposed(), media_type=CONTENT_TYPE)

    return show_metrics


class _HeadAsGet:
    """Answers HEAD, which tools that watch services ask with, as GET without the body. Not below `/v1/`, where some
    GETs have an effect."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD" or scope["path"].startswith(INTERFACE):
            await self._app(scope, receive, send)
            return

        async def without_body(message: Message) -> None:
            await send({**message, "body": b""} if message["type"] == "http.response.body" else message)

        await self._app({**scope, "method": "GET"}, receive, without_body)


class _Measured:
    """Counts requests by the template of their route, so that text from clients never becomes a label."""

    def __init__(self, app: ASGIApp, *, metrics: ServiceMetrics, runtime: Runtime) -> None:
        self._app = app
        self._metrics = metrics
        self._clock = runtime.clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started_s = self._clock.monotonic_s()
        status = int(HTTPStatus.INTERNAL_SERVER_ERROR)

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            with span(f"{scope['method']} request", parent=Headers(scope=scope).get("traceparent", "")):
                await self._app(scope, receive, noting)
        finally:
            self._metrics.request_answered(
                route=getattr(scope.get("route"), "path", "other"),
                status=status,
                seconds=self._clock.monotonic_s() - started_s,
            )
