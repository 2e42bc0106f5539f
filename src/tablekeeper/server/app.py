"""The composition root: settings become a store, engines and loops, on threads, until somebody asks them to stop.

`Service` is one instance. `drain` (SIGTERM) starts nothing more and waits a limited time for running jobs; jobs that
take longer continue on their own, and the next instance adopts them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from platform import node

from sqlalchemy.exc import OperationalError, SQLAlchemyError

from tablekeeper.errors import InvalidRequestError, TablekeeperError
from tablekeeper.runtime import Periodic, Runtime
from tablekeeper.server.engines.process import EngineContext
from tablekeeper.server.engines.registry import Engines
from tablekeeper.server.loops.context import LoopContext
from tablekeeper.server.loops.housekeeping import AlarmLoop, BeatLoop, ExpireLoop, PruneLoop
from tablekeeper.server.loops.looks import LookLoop
from tablekeeper.server.loops.sample import SampleLoop
from tablekeeper.server.loops.schedule import ScheduleLoop
from tablekeeper.server.loops.watch import WatchLoop
from tablekeeper.server.model import ManagedTable
from tablekeeper.server.observe.delivery import AlarmDelivery
from tablekeeper.server.observe.metrics import ServiceMetrics
from tablekeeper.server.places import AllowedPlaces
from tablekeeper.server.settings import ServerSettings
from tablekeeper.server.store.protocol import JobStore, NewInstance
from tablekeeper.server.store.sql import open_store
from tablekeeper.server.timelines import TableTimelines
from tablekeeper.table.summary import TimelineSummary

__all__ = ["Service", "kept_going", "open_service"]

_LOG = logging.getLogger(__name__)
_ID_LENGTH = 12


class Service:
    """One instance: the loops over one store, with their engines. `timelines` are those of its open tables."""

    def __init__(self, context: LoopContext, timelines: TableTimelines) -> None:
        self.context = context
        self.timelines = timelines
        self.looks = LookLoop(context)
        self.schedule = ScheduleLoop(context, AllowedPlaces(context.settings.allow))
        self.watch = WatchLoop(context)
        self.beat = BeatLoop(context)
        self.expire = ExpireLoop(context)
        self.prune = PruneLoop(context)
        self.alarms = AlarmLoop(context)
        self.sample = SampleLoop(context)
        self.delivery = AlarmDelivery(
            context.store,
            context.settings.channels,
            timing=context.settings.timing,
            address=context.settings.public_url.rstrip("/") or context.instance.address,
            jitter=context.runtime.ids.jitter,
        )
        self._threads: dict[str, Periodic] = {}

    @property
    def store(self) -> JobStore:
        return self.context.store

    def start(self) -> None:
        """Run all loops in the background."""
        timing = self.context.settings.timing
        # Before anything else: others see who holds what, and do not miss an instance that was only started again.
        self.store.replace_instances(self.context.instance)
        self.beat.run_once()
        for name, run_once, every_s in (
            ("beat", self.beat.run_once, timing.renew_every_s),
            ("looks", self.looks.run_once, timing.look_every_s),
            ("schedule", self.schedule.run_once, timing.schedule_every_s),
            ("watch", self.watch.run_once, timing.watch_every_s),
            ("expire", self.expire.run_once, timing.expire_every_s),
            ("prune", self.prune.run_once, timing.prune_every_s),
            ("alarms", self.alarms.run_once, timing.alarms_every_s),
            ("sample", self.sample.run_once, timing.sample_every_s),
            ("delivery", self.delivery.run_once, timing.alarms_every_s),
        ):
            action = kept_going(name, run_once)
            self._threads[name] = self.context.runtime.threads.every(every_s, action, name=f"tablekeeper-{name}")
        _LOG.info("instance %s is up", self.context.instance_id)

    def run_once(self) -> None:
        """One round of everything, in the caller's thread."""
        for loop in (
            self.beat,
            self.expire,
            self.looks,
            self.schedule,
            self.watch,
            self.alarms,
            self.sample,
            self.delivery,
        ):
            loop.run_once()

    def drain(self) -> None:
        """Start nothing more, wait for running jobs as long as the settings allow, and stop."""
        clock = self.context.runtime.clock
        self.schedule.is_draining = self.beat.is_draining = True
        # Its current round may still start operations that it has claimed; wait for those too.
        scheduling = self._threads.pop("schedule", None)
        if scheduling is not None:
            scheduling.stop()
        kept_going("beat", self.beat.run_once)()
        until_s = clock.monotonic_s() + self.context.settings.timing.drain_s
        while self.context.watched and clock.monotonic_s() < until_s:
            clock.sleep(self.context.settings.timing.watch_every_s)
        self.stop()

    def stop(self) -> None:
        """End the loops. Jobs continue; their leases expire, and another instance adopts them."""
        for thread in self._threads.values():
            thread.stop()
        self._threads.clear()
        if not self.context.watched:
            kept_going("leave", self._leave)()
        self.context.engines.close()
        self.context.store.close()
        _LOG.info("instance %s is down", self.context.instance_id)

    def _leave(self) -> None:
        self.context.store.remove_instance(self.context.instance_id)


def open_service(settings: ServerSettings, *, runtime: Runtime, address: str = "") -> Service:
    """An instance, with its database brought up to date."""
    try:
        for folder in ("", "attempts", "jobs", "warm"):
            path = settings.work_dir / folder
            is_new = not path.exists()
            path.mkdir(parents=True, exist_ok=True)
            if is_new or folder:
                # The files of jobs contain keys of the store. The permissions of an existing folder are not changed.
                path.chmod(0o700)
    except OSError as error:
        raise InvalidRequestError(
            f"cannot write to the work directory {settings.work_dir}: {error.strerror}"
        ) from error
    if not settings.database_url:
        # Digests of tokens and policies of tables: for nobody else on the machine, wherever the folder is.
        (settings.work_dir / "service.db").touch(mode=0o600)
    store = open_store(settings.url, runtime=runtime)
    try:
        store.migrate()
    except OperationalError as error:
        raise InvalidRequestError(f"the database cannot be used: {error.orig}. Is it up, and --db right?") from error
    engines = Engines(
        EngineContext(
            work_dir=settings.work_dir,
            runtime=runtime,
            master=settings.master,
            log_bytes=settings.limits.log_bytes,
            options=settings.engine_options,
        ),
        settings.engine,
    )

    # They refuse paths that have become links to outside the allowed places.
    timelines = TableTimelines(settings.storage_options, runtime, AllowedPlaces(settings.allow))

    def look(table: ManagedTable) -> TimelineSummary:
        return timelines.summary(table.base_path)

    def is_held(table: ManagedTable, instant: str) -> bool:
        plans = timelines.open(table.base_path).plans()
        return any(plan.is_held for plan in plans if plan.instant.value == instant)

    def was_archived(table: ManagedTable, instant: str) -> bool:
        return timelines.was_archived(table.base_path, instant)

    instance = NewInstance(
        instance_id=f"{node()[:40]}-{runtime.ids.uuid()[:_ID_LENGTH]}",
        host=node(),
        pid=os.getpid(),
        address=address,
        slots=settings.limits.slots,
    )
    context = LoopContext(
        store, engines, settings, runtime, instance, look, is_held, was_archived, ServiceMetrics(store)
    )
    return Service(context, timelines)


def kept_going(name: str, run_once: Callable[[], object]) -> Callable[[], None]:
    """A loop that outlives a database that is away, and whatever else fails in one round: the next one tries again.

    Of failures in a row every one is told whose number is a power of two: a loop that runs twice a second would
    otherwise fill the log as long as the database is away.
    """
    failures = 0

    def run() -> None:
        nonlocal failures
        try:
            run_once()
            if failures:
                _LOG.info("%s: goes on after %d failures", name, failures)
                failures = 0
        except (TablekeeperError, SQLAlchemyError, OSError) as error:
            failures += 1
            if failures.bit_count() == 1:
                reason = str(error).partition("\n")[0]
                _LOG.warning("%s: failure %d in a row: %s: %s", name, failures, type(error).__name__, reason)
        except Exception:  # noqa: BLE001 (a loop that ends would take the service down; it is logged with its trace)
            _LOG.exception("%s: unexpected error", name)

    return run
