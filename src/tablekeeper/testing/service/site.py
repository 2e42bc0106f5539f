"""Where a simulated service runs: its database, its machines, its instances, and what it was asked for.

An instance is the production `Service`, put together as `server/app.py` does it, but for the database, the engine and
the store of tables.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from sqlalchemy.exc import SQLAlchemyError

from tablekeeper.server.api.permissions import LOCAL_ADMIN
from tablekeeper.server.api.refusals import RefusedCallError
from tablekeeper.server.api.writers import WriterCalls
from tablekeeper.server.app import Service
from tablekeeper.server.loops.context import LoopContext
from tablekeeper.server.model import ForbiddenTransitionError, ManagedTable, ServiceAction
from tablekeeper.server.observe.metrics import ServiceMetrics
from tablekeeper.server.places import AllowedPlaces
from tablekeeper.server.policy import Policy
from tablekeeper.server.settings import Limits, ServerSettings, Timing
from tablekeeper.server.store.protocol import NewInstance, NewTable, UnknownRecordError
from tablekeeper.server.timelines import TableTimelines
from tablekeeper.storage.protocol import Storage
from tablekeeper.table import Table
from tablekeeper.testing.chance import Chance
from tablekeeper.testing.loop import Call
from tablekeeper.testing.process import Process
from tablekeeper.testing.service.database import ServiceDatabase
from tablekeeper.testing.service.engine import Machine, RunningJob, SimulatedEngines
from tablekeeper.testing.service.watch import ServiceWatch
from tablekeeper.testing.store import take_step
from tablekeeper.testing.worker import Worker, open_table
from tablekeeper.testing.world import URI, World

__all__ = ["CALLER", "DATABASE_NAME", "REFUSALS", "TABLE_NAME", "Instance", "Site", "UnansweredError"]

T = TypeVar("T")

CALLER = LOCAL_ADMIN
DATABASE_NAME, TABLE_NAME = "default", "trips"
_ANSWER_WITHIN_S = 10.0
_TIMING = Timing(
    lease_s=60.0,
    renew_every_s=10.0,
    schedule_every_s=5.0,
    watch_every_s=5.0,
    look_every_s=10.0,
    expire_every_s=15.0,
    # These have nothing to do with who acts on what.
    alarms_every_s=1e6,
    sample_every_s=1e6,
    prune_every_s=1e6,
    drain_s=20.0,
    back_off_s=5.0,
)
_POLICY = Policy(
    services=tuple(each for each in ServiceAction if each is not ServiceAction.METADATA_COMPACTION),
    compact_after_commits=2,
    log_compact_after_commits=3,
    cluster_after_commits=3,
    clean_after_commits=3,
    archive_after_instants=6,
    keep_commits=2,
)


REFUSALS = (RefusedCallError, ForbiddenTransitionError, UnknownRecordError)
"""Answers that say no."""


class UnansweredError(Exception):
    """Nobody answered in time."""


@dataclass(eq=False)
class Instance:
    """One process of the service."""

    service: Service
    process: Process
    calls: WriterCalls

    @property
    def is_alive(self) -> bool:
        return not self.process.is_dead


class Site:
    """Of one run, and made when the first process wants something of a service."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.database = ServiceDatabase(world.loop)
        self.instances: list[Instance] = []
        self.machines: dict[str, Machine] = {}
        self.acknowledged: dict[str, int] = {}
        self._judge = Process(world.loop, "service judge", seed="service judge")
        self.store = self.database.plain_store(self._judge.runtime)
        """For looking, beside all steps."""
        table, _ = self.store.register_table(NewTable(DATABASE_NAME, TABLE_NAME, URI, policy=_POLICY))
        self.table_id = table.table_id
        self.watch = ServiceWatch(world, self.database)
        self.database.saw_change = self.watch.saw_change

    @property
    def jobs(self) -> list[RunningJob]:
        return [job for machine in self.machines.values() for job in machine.jobs.values()]

    def open_instance(self, worker: Worker) -> Instance:
        """An instance in the process of this worker, which has to let its loops run."""
        process = worker.process
        machine = self.machines.setdefault(process.host, Machine(self.world, process.host, self._started))
        store = self.database.store_of(process, self.world.watch)
        timelines = _Timelines(worker)

        def is_held(table: ManagedTable, instant: str) -> bool:
            plans = timelines.open(table.base_path).plans()
            return any(plan.is_held for plan in plans if plan.instant.value == instant)

        settings = ServerSettings(Path("simulated"), allow=(URI,), timing=_TIMING, limits=Limits(slots=3))
        name = f"{process.name}-{process.runtime.ids.uuid()[:6]}"
        context = LoopContext(
            store,
            SimulatedEngines(machine, process),
            settings,
            process.runtime,
            NewInstance(name, process.host, process.pid, address="", slots=settings.limits.slots),
            lambda table: timelines.summary(table.base_path),
            is_held,
            lambda table, instant: timelines.was_archived(table.base_path, instant),
            ServiceMetrics(store),
        )
        calls = WriterCalls(store, AllowedPlaces(settings.allow), timelines, engines=("arrow",))
        instance = Instance(Service(context, timelines), process, calls)
        self.watch.admit(name, process)
        self.instances.append(instance)
        return instance

    def ask(self, worker: Worker, what: str, call: Callable[[Instance], T]) -> T:
        """Send a request to some instance, and wait for the answer; `UnansweredError` if none comes in time.

        It may get lost, come late or twice, and its answer may get lost.
        """
        process, loop = worker.process, self.world.loop
        about_to = Call("ask", f"request/{what}", changes=True)
        answers: list[T | Exception] = []

        def send() -> None:
            alive = [each for each in self.instances if each.is_alive]
            if alive:
                instance = worker.chance.choice(alive)
                for delay_s in _arrivals(worker.chance):
                    serve = _serving(call, instance, answers)
                    loop.start_timer(instance.process, f"{instance.process.name}/{what}", serve, after_s=delay_s)

        take_step(process, self.world.watch, about_to, send, failure=_unanswered)
        loop.park(until=lambda: answers != [], until_s=loop.now_s + _ANSWER_WITHIN_S)
        is_answer_lost = worker.chance.random() < _LOST
        if not answers or is_answer_lost:
            raise UnansweredError
        if isinstance(answers[0], Exception):
            raise answers[0]
        return answers[0]

    def _started(self, job: RunningJob) -> None:
        self.watch.refuse_twins(job, self.jobs)


_LOST = 0.15


def _arrivals(chance: Chance) -> list[float]:
    """After how many seconds the request comes: not at all, at once, late, or twice."""
    fate = chance.random()
    if fate < _LOST:
        return []
    late_s = chance.choice((3.0, 15.0, 70.0, 400.0))
    if fate < 2 * _LOST:
        return [late_s]
    return [0.0, late_s] if fate < 3 * _LOST else [0.0]


def _serving(call: Callable[[Instance], T], instance: Instance, answers: list[T | Exception]) -> Callable[[], None]:
    def serve() -> None:
        try:
            answers.append(call(instance))
        except REFUSALS as error:
            answers.append(error)
        except SQLAlchemyError:
            # The service answers that it is not available, which is no answer.
            return

    return serve


def _unanswered(path: str, what: str) -> UnansweredError:
    return UnansweredError(f"{path}: {what}")


class _Timelines(TableTimelines):
    """The table of the history, as the process of this worker has it."""

    def __init__(self, worker: Worker) -> None:
        super().__init__({}, worker.process.runtime, AllowedPlaces((URI,)))
        self._worker = worker
        self._table = open_table(worker.storage, worker.process, options_in=worker.world.watch.storage)

    def _storage(self, base_path: str) -> Storage:
        self._places.recheck(base_path)
        return self._worker.storage

    def _opened(self, base_path: str) -> Table:
        self._places.recheck(base_path)
        return self._table
