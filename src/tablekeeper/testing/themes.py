"""What histories are about: a theme says who meets whom, when, and what goes wrong, so that seeds are not spent on
processes that never get into each other's way.

Each actor has a slot: its roles or jobs, and the pauses before its jobs. Faults hit the first actor, or
as many as are `faulty`. The jobs of `before` have been done when the actors begin. To add a theme, add it to `THEMES`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tablekeeper.testing.history import FaultKind, Shape

__all__ = ["ANYTHING", "THEMES", "Slot", "Theme"]

_AT_ONCE = (0.0, 0.0, 0.05, 0.2)
_LATER = (400.0, 600.0, 1.0)
"""After the lease and the heartbeat of a sleeper are over, and then one after the other."""

_SLEEPS = (FaultKind.SLEEP_BEFORE, FaultKind.SLEEP_AFTER)
_DEATHS = (FaultKind.DEATH_BEFORE, FaultKind.DEATH_AFTER)
_ERRORS = (FaultKind.ERROR_BEFORE, FaultKind.ERROR_AFTER)
_SERVICES = ("compact", "log_compact", "cluster")
_WRITES = ("upsert", "upsert", "delete", "insert", "insert_overwrite", "bulk_insert")


@dataclass(frozen=True)
class Slot:
    """One actor: what it may do, at least and at most so often, and how long it waits before."""

    jobs: tuple[str, ...]
    pauses_s: tuple[float, ...] = _AT_ONCE
    least: int = 1
    most: int = 2


@dataclass(frozen=True)
class Theme:
    """Actors, and what goes wrong for the first `faulty` of them. No shapes are all shapes, no kinds are no faults.

    `among` is the sort of calls at which it goes wrong, for each of the faulty one fault; without any, all calls may.
    `seconds` are how long sleeps and slow calls take. `hits_workers`: it goes wrong for the workers of a service.
    """

    name: str
    slots: tuple[Slot, ...]
    faults: tuple[FaultKind, ...] = ()
    most_faults: int = 1
    shapes: Sequence[Shape] = ()
    repeats_tasks: float = 0.1
    skews_s: tuple[float, ...] = (0.0,)
    is_slow: bool = False
    before: tuple[str, ...] = ()
    among: tuple[str, ...] = ()
    seconds: tuple[float, ...] = ()
    faulty: int = 1
    hits_workers: bool = False


_REQUESTS = ("report_plans", "submit_plan", "call_back")
_INSTANCE = Slot(("serve",), (0.0, 1.0, 5.0, 70.0))
_BUSY_WRITER = Slot(("upsert", "upsert", "delete", "plan_firm", *_REQUESTS), (0.0, 5.0, 20.0), least=3, most=5)

ANYTHING = "anything"
"""The theme without one: any actors, any faults."""

THEMES: dict[str, Theme] = {
    theme.name: theme
    for theme in (
        Theme(
            "sleeping writer",
            (
                Slot((*_WRITES, "delete_partitions", "insert_overwrite_table"), most=1),
                Slot(("upsert", "upsert", "delete", "compact", "cluster", "clean"), _LATER, least=2, most=3),
                Slot(("execute_waiting", "clean", "archive", "read", "cluster", "compact"), _LATER, most=2),
            ),
            _SLEEPS,
        ),
        Theme(
            "takeover",
            (
                Slot(_SERVICES, most=1),
                Slot(("execute_waiting", "execute_waiting", "clean_at_once"), _LATER, most=3),
                Slot(("upsert", "delete", "read", "clean", "archive"), (*_LATER, 0.0), most=3),
            ),
            (*_SLEEPS, *_SLEEPS, *_DEATHS),
            most_faults=2,
        ),
        Theme(
            "asleep in a renewal",
            (
                Slot((*_SERVICES, "upsert"), most=1),
                Slot(("execute_waiting", "execute_waiting", "clean"), (400.0,), most=2),
                Slot(("upsert", "clean", "archive"), _LATER, least=2, most=3),
            ),
            _SLEEPS,
            is_slow=True,
        ),
        Theme(
            "meeting",
            (
                Slot(_WRITES),
                Slot(_WRITES),
                Slot((*_WRITES, *_SERVICES, "clean", "archive")),
                Slot((*_SERVICES, "read")),
            ),
        ),
        Theme(
            "newcomers",
            (
                Slot(("upsert_new",)),
                Slot(("upsert_new", "upsert_new", "insert_overwrite", "delete_partitions")),
                Slot(("upsert_new", *_SERVICES, "delete")),
            ),
        ),
        Theme(
            "slow work",
            (
                Slot((*_WRITES, "upsert"), most=1),
                Slot((*_WRITES, "upsert", "plan_cancellable", "clean"), (0.0, 0.1, 1.0), most=2),
                Slot((*_SERVICES, "execute_waiting", "clean", "upsert"), (1.0, 2.0, 5.0), least=2, most=3),
            ),
            (FaultKind.SLOW,),
            faulty=2,
            among=("publishing", "publishing"),
        ),
        Theme(
            "yielding",
            (
                Slot(("upsert", "upsert", "delete"), (0.0, 1.0), most=1),
                Slot(("execute_waiting",), (0.0, 1.0, 2.0), most=2),
                Slot(("read", "upsert", "clean"), (0.0, 30.0), most=2),
            ),
            (FaultKind.SLOW,),
            among=("publishing",),
            before=("plan_cancellable",),
        ),
        Theme(
            "late loads",
            (
                Slot(("insert", "upsert_new", "insert"), (0.0,), most=1),
                Slot(("compact", "compact", "log_compact"), (0.3, 1.0), most=2),
                Slot(("read", "upsert"), (0.0, 30.0), most=2),
            ),
            (FaultKind.SLEEP_AFTER,),
            among=("lock",),
            seconds=(20.0, 90.0),
            shapes=(Shape("mor", options="small files"), Shape("mor", metadata=True, options="small files")),
        ),
        Theme(
            # One writer, of Java: where it loads late it does not see others that write the same, its own kind neither.
            "beside Java",
            (
                Slot(("java_upsert", "java_insert", "java_insert"), (0.0, 0.1), most=2),
                Slot(("compact", "cluster", "log_compact"), (0.1, 0.3, 2.0), least=2, most=3),
                Slot(("clean", "execute_waiting", "read", "archive"), (0.1, 5.0, 60.0), least=2, most=3),
            ),
            shapes=(Shape("mor", options="small files"), Shape("mor")),
        ),
        Theme(
            "dying twice",
            (
                Slot((*_WRITES, "compact", "cluster"), (0.0,), most=1),
                Slot(("clean", "upsert", "rollback_newest"), (400.0, 600.0), least=2, most=3),
                Slot(("clean", "execute_waiting", "archive"), (1_100.0, 400.0), least=2, most=3),
            ),
            _DEATHS,
            most_faults=3,
            faulty=2,
        ),
        Theme(
            "dying in a rollback",
            (
                Slot(("rollback_newest",), (0.0,), most=1),
                Slot(("clean", "upsert", "rollback_newest"), (400.0, 600.0), least=2, most=3),
                Slot(("read", "archive", "compact"), (0.1, 1_100.0), most=2),
            ),
            _DEATHS,
            among=("deleting",),
            before=("upsert",),
        ),
        Theme(
            "followers",
            (
                Slot(("upsert", "upsert_new", "insert"), (0.0,), most=1),
                Slot(("upsert_new", "insert", "follow"), (0.0, 1.0), least=2, most=3),
                Slot(("follow",), (1.0, 4.0, 20.0), least=3, most=4),
            ),
            (FaultKind.SLOW,),
            among=("publishing",),
            seconds=(3.0, 10.0),
        ),
        Theme(
            "slow beginner",
            (
                Slot(("upsert", "insert", "cluster"), (0.0,), most=1),
                Slot(("upsert", "upsert_new", "insert_overwrite"), (1.0, 2.0), least=5, most=7),
                Slot(("clean", "archive", "archive"), (5.0, 8.0), least=3, most=4),
            ),
            (FaultKind.SLOW,),
            among=("publishing",),
            seconds=(100.0,),
        ),
        Theme(
            "left out",
            (
                Slot(("cancel",), (0.0,), most=1),
                Slot(("upsert", "compact"), (5.0,), most=2),
            ),
            shapes=(Shape("mor"),),
            before=("plan_cancellable", "upsert_new", "upsert_new", "upsert_new", "upsert_new", "compact"),
        ),
        Theme(
            "slow restore",
            (
                Slot(("restore",), (0.0,), most=1),
                Slot(("upsert", "insert", "execute_waiting"), (0.1, 1.0, 5.0), least=2, most=3),
                Slot(("upsert", "compact", "clean", "cluster"), (0.0, 1.0, 30.0), most=2),
            ),
            (FaultKind.SLOW, *_SLEEPS, *_DEATHS),
            before=("savepoint", "upsert"),
        ),
        Theme(
            "begun before",
            (
                Slot((*_SERVICES, "plan_mutable"), (0.0,), most=1),
                Slot(("execute_waiting", "execute_waiting", "clean"), (400.0, 600.0), least=2, most=2),
                Slot(("execute_waiting", "cancel", "upsert"), (0.05, 400.05, 600.05), least=2, most=2),
            ),
            (*_DEATHS, *_ERRORS),
            shapes=(Shape("mor"),),
        ),
        Theme(
            "race for a plan",
            (
                Slot(("execute_waiting",), (0.0,), most=1),
                Slot(("execute_waiting",), (0.0,), most=1),
                Slot(("execute_waiting", "cancel", "clean", "upsert"), (0.0, 0.1), most=2),
            ),
            before=("plan_cancellable",),
        ),
        Theme(
            "cancelled at work",
            (
                Slot(("cancel",), (0.0, 0.05, 0.1), most=2),
                Slot(("execute_waiting", "cluster"), most=2),
                Slot(("execute_waiting", "clean", "cancel"), (0.1, 0.3, 1.0, 100.0), least=2, most=3),
            ),
            (*_DEATHS, FaultKind.SLOW),
            before=("plan_cancellable",),
        ),
        Theme(
            "emptied partitions",
            (
                Slot(("upsert_new",), (5.0,), most=1),
                Slot(("clean",), (0.0, 1.0), most=2),
                Slot(("read", "upsert_new"), (5.0, 30.0), most=2),
            ),
            (FaultKind.SLOW,),
            before=("delete_partitions", "upsert_new", "upsert_new"),
            among=("publishing", "deleting"),
            faulty=2,
            seconds=(20.0, 50.0),
        ),
        Theme(
            "old plans",
            (
                Slot(("plan_firm", "savepoint"), (0.0, 11.0), most=2),
                Slot(("upsert", "upsert", "insert_overwrite", "upsert_new"), (2.0, 5.0), least=4, most=6),
                Slot(("clean", "clean", "archive"), (6.0, 10.0), least=3, most=4),
                Slot(("execute_waiting", "restore", "read_as_of"), (60.0,), most=2),
            ),
        ),
        Theme(
            "many executors",
            (
                Slot((*_SERVICES, "plan_firm", "plan_mutable"), most=2),
                Slot(("execute_waiting",), most=2),
                Slot(("execute_waiting", "cancel", "clean_at_once", "upsert"), most=2),
                Slot(("clean", "clean_at_once", "cancel", "delete"), most=2),
            ),
            (*_DEATHS, *_SLEEPS, FaultKind.SLOW),
        ),
        Theme(
            "sleeping keeper",
            (
                Slot(
                    ("clean", "clean_at_once", "archive", "rollback_newest", "cancel", "compact_metadata_table"), most=1
                ),
                Slot(("upsert", "cluster", "compact", "delete_partitions"), _LATER, least=2, most=3),
                Slot(("clean", "archive", "execute_waiting", "upsert"), _LATER, most=2),
            ),
            (*_SLEEPS, *_DEATHS),
        ),
        Theme(
            "ways back",
            (
                Slot(("savepoint", "restore", "rollback_newest", "rollback_older"), (0.0, 0.5), least=2, most=3),
                Slot(("upsert", "upsert", "delete", "insert_overwrite"), (0.1, 1.0, 30.0), least=2, most=3),
                Slot(("restore", "clean", "archive", "read", "compact"), (1.0, 30.0, 400.0), most=2),
            ),
            (*_SLEEPS, *_DEATHS, *_ERRORS),
        ),
        Theme(
            "services",
            (
                Slot(("upsert", "upsert", "delete", "insert_overwrite"), (0.0, 10.0), least=3, most=5),
                Slot((*_SERVICES, "clean", "archive"), (0.0, 5.0, 10.0), least=3, most=5),
                Slot(("clean", "archive", "read", "compact_metadata_table"), (0.0, 5.0, 10.0), least=2, most=4),
            ),
            (*_DEATHS, *_ERRORS),
        ),
        Theme(
            "metadata",
            (
                Slot(("compact_metadata_table",), (0.0, 0.1, 5.0), most=3),
                Slot((*_WRITES, "clean"), (0.0, 0.1, 5.0), least=2, most=4),
                Slot((*_SERVICES, "rollback_newest", "upsert"), (0.0, 0.1, 5.0), most=3),
            ),
            (*_DEATHS, *_SLEEPS, *_ERRORS),
            shapes=(Shape("mor", metadata=True), Shape("cow", metadata=True)),
        ),
        Theme(
            "drivers",
            (
                Slot(("batch",), (0.0, 0.1, 400.0), least=2, most=3),
                Slot(("batch",), (0.0, 0.1, 400.0), least=2, most=3),
                Slot(("upsert", "archive", "clean", "follow"), (0.0, 0.1, 1.0, 400.0), least=2, most=3),
            ),
            (*_DEATHS, *_SLEEPS, *_ERRORS),
        ),
        Theme(
            "wrong clocks",
            (Slot(_WRITES, most=3), Slot(_WRITES, (0.0, 1.0, 400.0)), Slot((*_SERVICES, "clean"), (0.0, 1.0, 400.0))),
            (*_DEATHS, FaultKind.CLOCK),
            # No further: whoever dies with the lock holds it until its own clock says that the lease is over.
            skews_s=(0.0, -5.0, 5.0, 30.0),
        ),
        Theme(
            "service",
            (
                _INSTANCE,
                _INSTANCE,
                _BUSY_WRITER,
                Slot((*_REQUESTS, "take_plan_back", "cancel_operation", "cancel"), (5.0, 20.0, 60.0), most=3),
            ),
            (*_DEATHS, *_SLEEPS, *_ERRORS),
            most_faults=2,
        ),
        Theme(
            # For about as long as a lease is good for, so that it is over in the middle of something.
            "sleeping service",
            (_INSTANCE, Slot(("serve",), (0.0, 30.0)), _BUSY_WRITER, Slot(_REQUESTS, (5.0, 60.0), most=3)),
            _SLEEPS,
            among=("lease",),
            seconds=(65.0, 90.0, 90.0, 400.0),
            before=("plan_firm",),
        ),
        Theme(
            "database away",
            (_INSTANCE, _INSTANCE, _BUSY_WRITER, Slot(("submit_plan", "report_plans"), (5.0, 60.0), most=3)),
            (*_ERRORS, FaultKind.SLOW, *_DEATHS),
            among=("lease", "database"),
            faulty=2,
            before=("plan_firm",),
        ),
        Theme(
            "workers of a service",
            (
                _INSTANCE,
                Slot(("serve",), (20.0, 70.0)),
                _BUSY_WRITER,
                Slot(("execute_waiting", "cancel", "clean_at_once", "cancel_operation", "read"), (5.0, 60.0), most=3),
            ),
            (*_DEATHS, *_SLEEPS, *_ERRORS),
            most_faults=2,
            before=("plan_cancellable",),
            hits_workers=True,
        ),
        Theme(
            "requests to a service",
            (
                _INSTANCE,
                Slot(("submit_plan", "report_plans", "take_plan_back"), (1.0, 5.0, 60.0), least=3, most=5),
                Slot(("submit_plan", "report_plans", "cancel_operation", "upsert"), (1.0, 5.0, 60.0), least=2, most=4),
                Slot(("plan_cancellable", "plan_firm", "clean_at_once", "cancel", "archive"), (0.5, 20.0), most=3),
            ),
            (*_ERRORS, *_DEATHS, FaultKind.SLOW),
            before=("plan_firm",),
        ),
    )
}
