"""One trial of a sleeper: it works, sleeps, others act, it goes on; then what it and the others said is checked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import tablekeeper as tk
from tablekeeper.config.options import Options
from tablekeeper.config.table_properties import METADATA_PARTITIONS_KEY
from tablekeeper.engine.local import LocalEngine
from tablekeeper.errors import (
    CommitOutcomeUnknownError,
    ConflictError,
    FencedError,
    InvalidRequestError,
    NotFoundError,
    PlanCancelledError,
    PlanHeldError,
    TablekeeperError,
)
from tablekeeper.format.data_files import decode_log_name
from tablekeeper.metadata_table.layout import METADATA_DIRECTORY, load_metadata_timeline, metadata_config
from tablekeeper.model import Action, Operation
from tablekeeper.table.writer_options import load_writer_options
from tablekeeper.timeline.history import load_history
from tablekeeper.timeline.properties_file import change_properties
from tests.support.recovery_world import World
from tests.support.sleeper import ASLEEP_S, LateAttempts, Nap, RepeatingEngine, SleeperStorage
from tests.support.sleeper_cases import CASES, EFFECTS, NAME_KEY, Case, prepare
from tests.support.step_faults import OneThread
from tests.support.stress_plans import load_past
from tests.support.table_builder import rows_of, trips

__all__ = ["Trial", "try_sleeper"]

AT_ONCE = {"hoodie.table.service.rollback.delay.minutes": "0"}
TWO_DAYS_S = 2 * 86_400.0
EXPECTED = (ConflictError, FencedError, PlanHeldError, PlanCancelledError, CommitOutcomeUnknownError)
_OTHER = trips(("a", "sf", 1, 8.0), ("c", "la", 1, 8.0), ("x", "sf", 1, 8.0))
_LAST = trips(("b", "sf", 1, 9.0), ("z", "la", 1, 9.0))


@dataclass
class Trial:
    """What happened. `said` has, by name of the write, whether its writer reported success; None if it cannot know."""

    calls: list[tuple[str, str]] = field(default_factory=list)
    said: dict[str, bool | None] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    outcome: str = ""


def try_sleeper(
    name: str, nap: Nap | None, *, repeats: bool = False, early: bool = False, has_scopes: bool = True
) -> Trial:
    """Let the process of this case sleep at `nap`; on a store that is as object stores are if not `has_scopes`.

    `repeats`: its engine runs tasks twice, and the attempts that do not count end when it has ended, or, if
    `early`, while it sleeps.
    """
    case, start = CASES[name], prepare(name)
    world, trial = start.world.copy(has_scopes=has_scopes), Trial()
    try:
        if name == "clean_dead_write":
            world.clock.advance(600)
        late = LateAttempts(at_publish=nap is None or nap.step % 2 == 0) if repeats else None
        others = partial(_others, world, trial, late if early else None)
        table, storage = _sleeper(world, nap, others, late)
        result, error = _attempt(lambda: case.act(table, start.target))
        if late is not None:
            late.release()
            if late.broken:
                trial.faults.append(f"{late.broken} late attempts broke; see the output")
        trial.calls = list(storage.calls)
        trial.outcome = type(error).__name__ if error is not None else "success"
        _note_outcome(case, trial, error, slept=storage.slept)
        _judge(world, trial, case, start.target, result)
    finally:
        world.forget()
    return trial


def _sleeper(
    world: World, nap: Nap | None, meanwhile: Callable[[], None], late: LateAttempts | None
) -> tuple[tk.Table, SleeperStorage]:
    runtime = world.new_runtime()
    assert isinstance(runtime.threads, OneThread)
    store = world.open_store(runtime)
    storage = SleeperStorage(store, threads=runtime.threads, clock=world.clock, nap=nap, meanwhile=meanwhile, late=late)
    options = Options(None).merged_over(load_writer_options(world.storage))
    engine = LocalEngine(threads=1, runtime=runtime) if late is None else RepeatingEngine(runtime=runtime, late=late)
    return tk.Table(storage, engine, options, runtime=runtime), storage


def _attempt(act: Callable[[], Any]) -> tuple[Any, TablekeeperError | None]:
    try:
        return act(), None
    except TablekeeperError as error:
        return None, error


def _note_outcome(case: Case, trial: Trial, error: TablekeeperError | None, *, slept: bool) -> None:
    if case.write:
        is_unknown = isinstance(error, CommitOutcomeUnknownError)
        trial.said[case.write] = None if is_unknown else error is None
    if error is None:
        return
    if not slept:
        trial.faults.append(f"failed without any sleep: {error!r}")
    # What the sleeper wanted may have become impossible: the plan is gone, others wrote after what it wanted undone,
    # a file that it is about to read was cleaned.
    if not isinstance(error, (*EXPECTED, InvalidRequestError, NotFoundError)):
        trial.faults.append(f"an error that says nothing to the caller: {error!r}")


def _others(world: World, trial: Trial, late: LateAttempts | None) -> None:
    """Another process writes, executes what waits, compacts, clusters and cleans while the sleeper sleeps."""
    table, _, threads = world.client()
    jobs: list[tuple[str, Callable[[], Any]]] = [("upsert", lambda: table.upsert(_OTHER, extra={NAME_KEY: "other"}))]
    if table.config.is_mor:
        jobs += [("log_compact", table.log_compact), ("compact", table.compact)]
    jobs += [("cluster", lambda: table.cluster(order_by="ts")), ("clean", lambda: table.clean(options=AT_ONCE))]
    for name, job in jobs:
        world.clock.advance(1)
        _, error = _attempt(job)
        trial.log.append(f"{name}: {'done' if error is None else f'{type(error).__name__}: {error}'}")
        if name == "upsert":
            trial.said["other"] = error is None
        if error is not None and not isinstance(error, (ConflictError, PlanHeldError)):
            trial.faults.append(f"{name} of another process failed: {error!r}")
    threads.kill()
    if late is not None:
        late.release()


def _judge(world: World, trial: Trial, case: Case, target: str, result: Any) -> None:
    faults = trial.faults
    if trial.outcome == "success" and not case.done(world, target, result):
        faults.append(f"{result!r} was reported and is not so")
    faults += [f"{fault} (at once)" for fault in _wrong_rows(world, trial)]
    faults += _completed_twice(world)
    world.clock.advance(ASLEEP_S)
    for tidy in (
        lambda: world.table.clean(options=AT_ONCE),
        lambda: _execute_waiting(world),
        lambda: _last(world, trial),
    ):
        _, error = _attempt(tidy)
        is_restoring = isinstance(error, ConflictError) and "being restored" in str(error)
        if error is not None and not is_restoring:
            faults.append(f"tidying up failed: {error!r}")
        world.clock.advance(1)
    faults += [f"{fault} (after a clean)" for fault in _wrong_rows(world, trial)]
    world.clock.advance(TWO_DAYS_S)
    report, error = _attempt(lambda: world.table.doctor(fix=True))
    if error is not None or report.failed or not report.is_healthy or report.repairs:
        faults.append(f"the doctor is not content: {report} {error!r}")
    faults += [f"{fault} (after the doctor)" for fault in _wrong_rows(world, trial)]
    faults += [f"{instant} is pending" for instant in world.timeline.pending]
    faults += _strays(world)
    faults += _completed_twice(world)


def _execute_waiting(world: World) -> None:
    for plan in world.table.plans():
        try:
            world.table.execute(plan.instant)
        except ConflictError:
            if not plan.flags.cancellable:
                raise


def _last(world: World, trial: Trial) -> None:
    trial.said["last"] = False
    world.table.upsert(_LAST, extra={NAME_KEY: "last"})
    trial.said["last"] = True


def _wrong_rows(world: World, trial: Trial) -> list[str]:
    """The rows against those of the commits in the order of their completion, and these against what was said."""
    past = load_past(world.table)
    commits = sorted(past.ingestion, key=lambda each: each[0].completed_at or each[0].requested_at)
    model: dict[str, tuple[str, float]] = {}
    landed: Counter[str] = Counter()
    for _, metadata in commits:
        is_drop = metadata.operation is Operation.DELETE_PARTITION
        name = "DELETE_PARTITION" if is_drop else metadata.extra[NAME_KEY]
        landed[name] += 1
        EFFECTS[name](model)
    expected = sorted((key, city, fare) for key, (city, fare) in model.items())
    faults = [f"{name} landed {count} times" for name, count in landed.items() if count > 1]
    is_way_back = any(i.action.value in ("restore", "rollback") and i.is_completed for i in world.timeline)
    for name, said in trial.said.items():
        if said is False and landed[name]:
            faults.append(f"{name} was reported as failed and landed")
        if said and not landed[name] and not is_way_back:
            faults.append(f"{name} was reported as done and is not there")
    try:
        rows = rows_of(world.table.read(), "id", "city", "fare")
    except TablekeeperError as error:
        return [*faults, f"the table cannot be read: {error!r}"]
    if rows != expected:
        faults.append(f"rows are {rows} and should be {expected}")
    if world.table.config.has_metadata_table:
        bare = world.copy()
        change_properties(bare.storage, {METADATA_PARTITIONS_KEY: ""})
        listed = rows_of(bare.table.read(), "id", "city", "fare")
        bare.forget()
        if listed != rows:
            faults.append(f"by listing rows are {listed}, by the metadata table {rows}")
    return faults


def _completed_twice(world: World) -> list[str]:
    """Instants with more than one completed file, of the table and of its metadata table."""
    faults = []
    for folder in (".hoodie/timeline", ".hoodie/metadata/.hoodie/timeline"):
        names = [info.name for info in world.storage.list_files(folder)]
        # A savepoint has the time of the commit that it protects.
        counts = Counter((name[: name.index("_")], name.rpartition(".")[2]) for name in names if "_" in name)
        faults += [f"{folder}: {' '.join(time)} completed {count} times" for time, count in counts.items() if count > 1]
    return faults


def _strays(world: World) -> list[str]:
    known = {stat.path for _, metadata in load_past(world.table).commits for stat in metadata.stats}
    faults = [f"{path} belongs to no commit" for path in sorted(world.data_files() - known)]
    if world.table.config.has_metadata_table:
        faults += _metadata_strays(world)
    try:
        world.refuse_stale_metadata_table()
    except AssertionError as error:
        faults.append(f"the metadata table does not list what is there: {error}")
    return faults


def _metadata_strays(world: World) -> list[str]:
    """What no commit of the metadata table stands for: it would count as committed one day."""
    config = world.table.config
    timeline = load_metadata_timeline(world.storage, config)
    archived = load_history(world.storage, metadata_config(config), with_contents=False)
    known = {i.requested_at.value for i in timeline} | {each.instant.requested_at.value for each in archived}
    logs = [(file.path, decode_log_name(file.name)) for file in world.storage.walk(METADATA_DIRECTORY)]
    # The next compaction of the metadata table removes its unfinished attempts.
    pending = [i for i in timeline.pending if i.action is not Action.COMPACTION]
    return [
        *(f"{instant} of the metadata table is pending" for instant in pending),
        *(f"{path} belongs to no instant" for path, name in logs if name is not None and name.instant not in known),
    ]
