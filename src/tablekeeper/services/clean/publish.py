"""Putting a clean on the timeline: planned without the lock, published under it after checking what is new.

Once begun, a plan is always executed, by any process: nothing withdraws it. So under the lock the draft drops files
that new savepoints or plans need, and it is planned again if a commit was rolled back, so that older files are the
newest again. A savepoint or a rollback that comes later sees the plan.
"""

from __future__ import annotations

from dataclasses import dataclass

from tablekeeper.config.clean_settings import CleanSettings
from tablekeeper.errors import ConflictError
from tablekeeper.format.data_files import PARTITION_METADATA_NAME
from tablekeeper.format.plans import CleanFile, CleanPlan, RetainedInstant, encode_clean_plan
from tablekeeper.model import Action, Instant, RequestedTime, State
from tablekeeper.services.clean.guard import Taken, begin_taken
from tablekeeper.services.clean.plan import CleanDraft, CleanView, plan_clean
from tablekeeper.services.clean.view import Scope, find_last_clean, load_holds, load_view
from tablekeeper.snapshot.slices import load_files_by_listing
from tablekeeper.storage import hadoop_path
from tablekeeper.timeline import Timeline, create_requested, parse_time
from tablekeeper.txn.commit import refuse_during_restore
from tablekeeper.txn.environment import TableEnvironment, next_time
from tablekeeper.txn.publish import confirm_pending
from tablekeeper.txn.savepoints import savepoints_of

__all__ = [
    "Drafted",
    "Published",
    "draft_and_publish",
    "load_draft",
    "schedule_clean",
]

_ATTEMPTS = 3
_MANY_PARTITIONS = 100
_HOUR_MS = 3_600_000


@dataclass(frozen=True)
class Drafted:
    """A draft, what it was planned on, and how the partitions were found."""

    draft: CleanDraft
    view: CleanView
    scope: Scope


@dataclass(frozen=True)
class Published:
    """The result of publishing a draft. `requested` is None if nothing was put on the timeline.

    `is_stale`: it has to be planned again. `taken` is the clean that was begun, if the caller wanted that.
    """

    requested: Instant | None = None
    taken: Taken | None = None
    is_stale: bool = False


def schedule_clean(environment: TableEnvironment, settings: CleanSettings) -> Instant | None:
    """Plan a clean and put it on the timeline; None if there is nothing to do, or a clean is waiting already."""
    return draft_and_publish(environment, settings, begins=False).requested


def draft_and_publish(environment: TableEnvironment, settings: CleanSettings, *, begins: bool) -> Published:
    """Plan and publish; with `begins` take the clean under the same lock, so that nobody else does."""
    for _ in range(_ATTEMPTS):
        drafted = load_draft(environment, settings)
        if not _is_worth_publishing(environment, drafted):
            return Published()
        outcome = _publish(environment, drafted, begins=begins)
        if not outcome.is_stale:
            return outcome
    raise ConflictError(
        f"table {environment.config.name}: commits were taken back or archived each time a clean was planned. Nothing "
        "was deleted; clean again when the rollbacks are over.",
        instant="",
        beaten_by="",
        file_groups=(),
    )


def load_draft(environment: TableEnvironment, settings: CleanSettings) -> Drafted:
    """What a clean would do now. Partitions with files that no commit names are not emptied."""
    view, scope = load_view(environment, settings)
    draft = plan_clean(view, settings)
    if draft.emptied:
        draft = draft.keeping(_load_occupied(environment, draft))
    return Drafted(draft, view, scope)


def _publish(environment: TableEnvironment, drafted: Drafted, *, begins: bool) -> Published:
    config = environment.config
    with environment.locked() as held:
        timeline = held.load_timeline()
        refuse_during_restore(held, timeline)
        if any(i.action is Action.CLEAN for i in timeline.pending):
            # Another clean was published first, and may delete the same files.
            return Published()
        if timeline.has_lost(drafted.view.timeline):
            return Published(is_stale=True)
        draft = _after_news(held, drafted, timeline)
        if draft.is_empty and not drafted.draft.is_empty:
            return Published()
        plan = _plan(held, draft, timeline)
        requested_at = RequestedTime(next_time(held, timeline))
        held.lease.check()

        def create() -> Instant:
            content = encode_clean_plan(plan)
            requested = create_requested(
                held.storage, config, requested_at=requested_at, action=Action.CLEAN, content=content
            )
            confirm_pending(held, requested)
            return requested

        if not begins:
            return Published(create())
        taken = begin_taken(held, requested_at, plan, create=create)
        return Published(taken.inflight, taken)


def _after_news(environment: TableEnvironment, drafted: Drafted, timeline: Timeline) -> CleanDraft:
    """The draft without the files of savepoints and plans that were added since."""
    known = frozenset(drafted.view.timeline.instants)
    savepoints = [i for i in savepoints_of(timeline) if i not in known]
    seen = {i.requested_at for i in known}
    plans = [i for i in timeline.pending_plans if i.requested_at not in seen]
    holds = load_holds(environment, savepoints=savepoints, plans=plans)
    draft = drafted.draft.without(holds)
    # A running writer may be about to write into a partition that looks empty.
    return draft.keeping(draft.emptied) if timeline.pending_ingestion else draft


def _load_occupied(environment: TableEnvironment, draft: CleanDraft) -> frozenset[str]:
    """Emptied partitions with other files than those to delete: those of a running or dead write."""
    partitions = list(draft.emptied)
    listing = load_files_by_listing(environment.storage, partitions, runtime=environment.runtime)
    occupied = set()
    for partition, files in listing.items():
        going = {file.name for file in draft.files.get(partition, ())}
        if any(name not in going and not name.startswith(PARTITION_METADATA_NAME) for name, _ in files):
            occupied.add(partition)
    return frozenset(occupied)


def _is_worth_publishing(environment: TableEnvironment, drafted: Drafted) -> bool:
    """Whether to publish the plan: if it deletes anything, or if an empty one saves the next clean a full listing.

    An empty plan is published if the settings ask for it, and after a listing of many partitions found nothing.
    """
    draft, settings = drafted.draft, drafted.draft.settings
    if not draft.is_empty:
        return True
    if not settings.incremental or draft.earliest is None:
        return False
    if drafted.scope.instants is None and len(drafted.view.files) >= _MANY_PARTITIONS:
        return True
    if settings.empty_interval_hours < 1:
        return False
    last = find_last_clean(drafted.view.timeline)
    if last is None:
        return True
    cleaned_ms = parse_time(last.requested_at.value, zone=environment.config.time_zone)
    return environment.runtime.clock.now_ms() - cleaned_ms > settings.empty_interval_hours * _HOUR_MS


def _plan(environment: TableEnvironment, draft: CleanDraft, timeline: Timeline) -> CleanPlan:
    spec = environment.storage.spec
    return CleanPlan(
        policy=draft.settings.policy.value,
        files={
            partition: tuple(CleanFile(hadoop_path(spec, file.path)) for file in files)
            for partition, files in draft.files.items()
        },
        partitions_to_delete=draft.emptied,
        earliest_instant_to_retain=_retained(draft, timeline),
        last_completed_commit=draft.last_completed,
        extra_metadata=draft.extra_metadata(is_partitioned=environment.config.is_partitioned),
    )


def _retained(draft: CleanDraft, timeline: Timeline) -> RetainedInstant | None:
    if draft.retained is None:
        return None
    found = timeline.find(draft.retained)
    action = Action.COMMIT if found is None else found.action
    return RetainedInstant(draft.retained.value, action.value, State.COMPLETED.value.upper())
