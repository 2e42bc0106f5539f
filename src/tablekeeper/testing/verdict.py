"""What must hold once nothing goes wrong any more: everything pending is resolved, and nothing is lost or left over.

`tidy_up` is the work of one more process, in bounded rounds, as a maintenance service would do it. `judge` then
compares the table with what was said and with itself. To add an invariant, write a function and mark it `@invariant`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial

from tablekeeper.config.simulation_options import AT_ONCE
from tablekeeper.errors import InvalidRequestError, TablekeeperError
from tablekeeper.format.data_files import PARTITION_METADATA_NAME
from tablekeeper.metadata_table.listing import open_metadata_table
from tablekeeper.model import Action
from tablekeeper.services.doctor.report import RepairKind
from tablekeeper.snapshot.slices import load_files_by_listing
from tablekeeper.testing.story import puts
from tablekeeper.testing.watch import Watch
from tablekeeper.testing.worker import KEYS, Worker, rows_of, trips
from tablekeeper.timeline import Timeline, load_timeline, load_written_paths
from tablekeeper.timeline.history import load_history
from tablekeeper.timeline.properties_file import load_table_config

__all__ = ["INVARIANTS", "caretaker", "invariant", "judge", "tidy_up"]

LAPSED_S = 1_000.0
"""Longer than any lease and any heartbeat, with what is allowed for clocks that differ."""

_OLD_S = 2 * 86_400.0
_ROUNDS = 4
_LITTER = (RepairKind.DELETE_MARKERS, RepairKind.DELETE_HEARTBEAT, RepairKind.DELETE_CANCEL_REQUEST)
"""What processes that died leave lying around, and nobody minds."""

_BY_DOCTOR = (Action.RESTORE, Action.SAVEPOINT)

Invariant = Callable[[Watch], None]
INVARIANTS: dict[str, Invariant] = {}


def invariant(function: Invariant) -> Invariant:
    """Register something that must hold in the end."""
    INVARIANTS[function.__name__] = function
    return function


Caretaker = Callable[[Worker], None]
CARETAKERS: list[Caretaker] = []


def caretaker(function: Caretaker) -> Caretaker:
    """Register somebody who ends what was begun besides the table, before the table itself is tidied up."""
    CARETAKERS.append(function)
    return function


def tidy_up(worker: Worker) -> None:
    """Resolve what is left, in a bounded number of rounds, and write once more."""
    table, process = worker.table, worker.process
    process.sleep(LAPSED_S)
    for function in CARETAKERS:
        function(worker)
    for _ in range(_ROUNDS):
        if _needs_doctor(worker):
            worker.attempt("tidy doctor", lambda: table.doctor(fix=True))
        worker.attempt("tidy clean", lambda: table.clean(options=AT_ONCE))
        for plan in worker.attempt("tidy plans", table.plans) or ():
            worker.attempt("tidy execute", partial(table.execute, plan.instant))
        if not _pending(worker):
            break
        process.sleep(LAPSED_S)
    # In one partition: what was forgotten in the other one stays forgotten.
    rows = {"a": (KEYS["a"], 1_000.0)}
    worker.name = "last"
    worker.write(lambda extra: table.upsert(trips(rows), extra=extra), puts(rows))
    if worker.story.writes["last"].said != "committed":
        worker.story.complain("resolved", "a write is not possible any more")
    if table.config.is_mor:
        for _ in range(_ROUNDS):
            if worker.attempt("tidy compact", table.compact) is None:
                break
            process.sleep(1)
    process.sleep(_OLD_S)
    report = worker.attempt("tidy doctor", lambda: table.doctor(fix=True))
    mended = [] if report is None else [repair for repair in report.repaired if repair.kind not in _LITTER]
    if report is not None and (report.failed or not report.is_healthy or mended):
        worker.story.complain("doctor", f"is not content: {report}")


def _needs_doctor(worker: Worker) -> bool:
    """Whoever died in a restore keeps writers away until the doctor finishes it, and nobody else ends a savepoint."""
    return any(i.is_pending and i.action in _BY_DOCTOR for i in worker.table.timeline().instants)


def _pending(worker: Worker) -> bool:
    return any(instant.is_pending for instant in worker.table.timeline().instants)


def judge(watch: Watch) -> None:
    """All invariants."""
    for name, function in INVARIANTS.items():
        try:
            function(watch)
        except TablekeeperError as error:
            watch.story.complain(name, f"cannot be checked: {type(error).__name__}: {error}")


@invariant
def rows(watch: Watch) -> None:
    """A snapshot read equals the commits in the order of their completion."""
    watch.check_rows("in the end")


@invariant
def said(watch: Watch) -> None:
    """What was acknowledged is there, what was refused is not, and nothing landed twice."""
    story = watch.story
    landed = Counter(commit.name for commit in story.commits.values())
    instants = {commit.name: commit.requested_at for commit in story.commits.values()}
    for name, count in landed.items():
        if count > 1:
            story.complain("once", f"{name} landed {count} times")
    for write in story.writes.values():
        if write.said == "refused" and not write.is_shared and landed[write.name]:
            story.complain("said", f"{write.name} was refused, and is there as {instants[write.name]}")
        is_owed = write.said == "committed" and write.instant and write.instant not in story.withdrawable
        if is_owed and instants.get(write.name) != write.instant:
            story.complain("said", f"{write.name} was acknowledged as {write.instant}, and is not there")


@invariant
def commits(watch: Watch) -> None:
    """The table remembers the commits that were seen, on its timeline or in its archive."""
    config = load_table_config(watch.storage)
    timeline = load_timeline(watch.storage, config)
    known = {i.requested_at.value for i in timeline.completed_writes}
    known |= {each.instant.requested_at.value for each in load_history(watch.storage, config, with_contents=False)}
    for commit in watch.story.commits.values():
        if commit.requested_at not in known:
            watch.story.complain("commits", f"{commit.name} ({commit.requested_at}) is forgotten")


@invariant
def resolved(watch: Watch) -> None:
    """Nothing is pending, and what was cancelled left no trace."""
    timeline = _timeline(watch)
    for instant in timeline.pending:
        watch.story.complain("resolved", f"{instant} is still pending")
    for time in watch.story.removed:
        left = [file.path for file in watch.storage.walk("") if time in file.name and not _is_rollback(file.path)]
        if left:
            watch.story.complain("cancelled", f"{time} was cancelled and removed, and left {left}")


def _is_rollback(path: str) -> bool:
    return path.startswith(".hoodie/metadata/")


@invariant
def strays(watch: Watch) -> None:
    """Every data file belongs to a commit."""
    config = load_table_config(watch.storage)
    known: set[str] = set()
    for instant in _timeline(watch).completed_writes:
        known |= load_written_paths(watch.storage, config, instant)
    times = {each.instant.requested_at.value for each in load_history(watch.storage, config, with_contents=False)}
    for file in watch.storage.walk(""):
        if file.path.startswith(".hoodie") or file.name.startswith(PARTITION_METADATA_NAME) or file.path in known:
            continue
        if not any(time in file.name for time in times):
            watch.story.complain("strays", f"{file.path} belongs to no commit")


@invariant
def listing(watch: Watch) -> None:
    """The metadata table lists exactly the files that are there."""
    config = load_table_config(watch.storage)
    table = watch.table
    listed = open_metadata_table(watch.storage, config, _timeline(watch), runtime=table._runtime)
    if listed is None:
        if config.has_metadata_table:
            watch.story.complain("listing", "the metadata table cannot be used")
        return
    partitions = sorted({f.path.rpartition("/")[0] for f in watch.storage.walk("") if not f.path.startswith(".hoodie")})
    there = load_files_by_listing(watch.storage, partitions, runtime=table._runtime)
    for partition in sorted({*partitions, *listed.partitions()}):
        found = sorted((n, s) for n, s in there.get(partition, []) if not n.startswith(PARTITION_METADATA_NAME))
        said_to_be = sorted(listed.files([partition])[partition])
        if found != said_to_be:
            watch.story.complain("listing", f"{partition} has {found}, and the metadata table says {said_to_be}")


@invariant
def missing_partitions(watch: Watch) -> None:
    """Nothing that a compaction had to leave out is forgotten: in the end no logs are left."""
    logs = [s.group.file_id for s in watch.table.files() if s.logs]
    if logs:
        watch.story.complain("missing partitions", f"{logs} were never compacted")


@invariant
def live(watch: Watch) -> None:
    """Where nothing goes wrong nobody is taken for dead."""
    if watch.is_calm:
        for name in watch.story.fenced:
            watch.story.complain("live", f"{name} was fenced, and nothing had happened to it")


@invariant
def followed(watch: Watch) -> None:
    """Whoever follows the changes has seen every row that is there, unless commits were taken back or are cleaned."""
    story = watch.story
    if story.cursor == "earliest" or story.withdrawable:
        return
    try:
        rest = watch.table.changes_since(story.cursor).rows
    except InvalidRequestError:
        return
    seen = {row[0] for row in story.followed.values()} | set(rest.column("id").to_pylist())
    missed = sorted(set(story.rows()) - seen)
    if missed:
        story.complain("once", f"the changes of {missed} never came")


@invariant
def as_of(watch: Watch) -> None:
    """Past moments read as they did."""
    for moment, expected in watch.story.moments.items():
        try:
            found = rows_of(watch.table.read(as_of=moment))
        except InvalidRequestError:
            continue
        if found != sorted((key, city, fare) for key, (city, fare) in expected.items()):
            watch.story.complain("as of", f"{moment} reads as {found} and was {expected}")


@invariant
def yields(watch: Watch) -> None:
    """A write loses to commits and to plans that take no updates, never to a plan that yields."""
    story = watch.story
    for name, instant in story.lost_to:
        if name in story.writes and "cancellable" in story.flags.get(instant, ""):
            story.complain("yields", f"{name} lost to {instant}, which is cancellable")


def _timeline(watch: Watch) -> Timeline:
    return load_timeline(watch.storage, load_table_config(watch.storage))
