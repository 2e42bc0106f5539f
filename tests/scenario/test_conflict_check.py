"""RFC-71, conflict detection: the candidate figure, the pending matrix, the compaction anomaly, overlap.

Times are small numbers: this write starts at 50 and wants to commit at 90.
"""

from __future__ import annotations

import pytest

from tablekeeper.config.concurrency_settings import CandidateStrategy, ConflictSettings
from tablekeeper.errors import InvalidRequestError
from tablekeeper.model import Action, CompletionTime, FileGroupId, Instant, RequestedTime, State
from tablekeeper.txn.conflict import (
    Conflict,
    ConflictCandidates,
    OwnWrite,
    Touched,
    WriteKind,
    find_conflict,
    overlapping_groups,
    pending_kind,
    select_candidates,
)

START = 50
BOTH = pytest.mark.parametrize("strategy", list(CandidateStrategy), ids=["start_timestamp", "end_timestamp"])
GROUP = FileGroupId("p", "f1")
OTHER_GROUP = FileGroupId("p", "f2")
KEY = "hoodie.write.lock.conflict.resolution.strategy"
PACKAGE = "org.apache.hudi.client.transaction."


def time(value: int) -> str:
    return f"{value:017d}"


def completed(start: int, end: int, action: Action = Action.COMMIT) -> Instant:
    return Instant(RequestedTime(time(start)), action, State.COMPLETED, CompletionTime(time(end)))


def pending(start: int, action: Action = Action.COMMIT, state: State = State.INFLIGHT) -> Instant:
    return Instant(RequestedTime(time(start)), action, state)


def own(
    kind: WriteKind = WriteKind.INGESTION,
    *,
    pending_at_start: tuple[int, ...] = (),
    start: int = START,
    is_cancellable: bool = False,
    groups: tuple[FileGroupId, ...] = (GROUP,),
) -> OwnWrite:
    return OwnWrite(
        instant=RequestedTime(time(start)),
        kind=kind,
        file_groups=frozenset(groups),
        pending_at_start=frozenset(RequestedTime(time(value)) for value in pending_at_start),
        is_cancellable=is_cancellable,
    )


def never(_: Instant) -> bool:
    return False


def always(_: Instant) -> bool:
    return True


def candidates(
    write: OwnWrite,
    *timeline: Instant,
    strategy: CandidateStrategy = CandidateStrategy.START_TIMESTAMP,
    allow_updates: bool = False,
    cancellable: bool = False,
) -> ConflictCandidates:
    return select_candidates(
        write,
        timeline=timeline,
        settings=ConflictSettings(strategy, allow_updates),
        is_cancellable=always if cancellable else never,
    )


def conflict(
    write: OwnWrite,
    *timeline: Instant,
    touched: dict[int, Touched],
    allow_updates: bool = False,
    cancellable: bool = False,
    by_bucket: bool = False,
) -> Conflict | None:
    return find_conflict(
        write,
        timeline=timeline,
        settings=ConflictSettings(allow_updates=allow_updates),
        touched_by=lambda instant: touched[int(instant.requested_at.value)],
        is_cancellable=always if cancellable else never,
        by_bucket=by_bucket,
    )


def touches(kind: WriteKind, *groups: FileGroupId) -> Touched:
    return Touched(frozenset(groups or (GROUP,)), kind)


# --- the candidate figure


@BOTH
def test_case_1_started_and_completed_before_this_write_is_no_candidate(strategy: CandidateStrategy) -> None:
    assert candidates(own(), completed(10, 40), strategy=strategy) == ConflictCandidates()


@BOTH
def test_case_2_started_before_and_completed_during_this_write_is_a_candidate(strategy: CandidateStrategy) -> None:
    other = completed(10, 60)
    write = own(pending_at_start=(10,))
    assert candidates(write, other, strategy=strategy) == ConflictCandidates(completed=(other,))


@BOTH
@pytest.mark.parametrize("state", [State.REQUESTED, State.INFLIGHT])
def test_case_3_started_before_and_still_pending_is_left_to_the_pending_matrix(
    strategy: CandidateStrategy, state: State
) -> None:
    ingestion = pending(10, Action.COMMIT, state)
    compaction = pending(20, Action.COMPACTION, state)
    write = own(pending_at_start=(10, 20))
    assert candidates(write, ingestion, compaction, strategy=strategy) == ConflictCandidates(pending=(compaction,))


@BOTH
def test_case_4_started_and_completed_during_this_write_is_a_candidate(strategy: CandidateStrategy) -> None:
    other = completed(60, 70)
    assert candidates(own(), other, strategy=strategy) == ConflictCandidates(completed=(other,))


@BOTH
@pytest.mark.parametrize("state", [State.REQUESTED, State.INFLIGHT])
def test_case_5_started_during_this_write_and_still_pending_is_left_to_the_pending_matrix(
    strategy: CandidateStrategy, state: State
) -> None:
    ingestion = pending(60, Action.DELTA_COMMIT, state)
    compaction = pending(70, Action.COMPACTION, state)
    assert candidates(own(), ingestion, compaction, strategy=strategy) == ConflictCandidates(pending=(compaction,))


@BOTH
def test_all_cases_together_give_two_and_four(strategy: CandidateStrategy) -> None:
    timeline = (completed(10, 40), completed(20, 60), pending(30), completed(60, 70), pending(80))
    found = candidates(own(pending_at_start=(20, 30)), *timeline, strategy=strategy)
    assert found == ConflictCandidates(completed=(timeline[1], timeline[3]))


def test_by_start_an_instant_is_found_although_its_completion_time_lies_before_this_start() -> None:
    # Clocks of two writers: what was seen pending and is completed now has completed since, whatever its time says.
    other = completed(10, 45)
    assert candidates(own(pending_at_start=(10,)), other).completed == (other,)


def test_by_end_nothing_needs_to_be_recorded_at_the_start() -> None:
    other = completed(10, 60)
    strategy = CandidateStrategy.END_TIMESTAMP
    assert candidates(own(), other, strategy=strategy).completed == (other,)


@BOTH
@pytest.mark.parametrize("action", [Action.COMMIT, Action.DELTA_COMMIT, Action.REPLACE_COMMIT])
def test_every_action_that_writes_data_is_a_candidate(strategy: CandidateStrategy, action: Action) -> None:
    other = completed(60, 70, action)
    assert candidates(own(), other, strategy=strategy).completed == (other,)


@BOTH
@pytest.mark.parametrize("action", [Action.CLEAN, Action.ROLLBACK, Action.SAVEPOINT, Action.RESTORE, Action.INDEXING])
def test_actions_that_write_no_data_cause_no_conflict(strategy: CandidateStrategy, action: Action) -> None:
    assert candidates(own(), completed(60, 70, action), pending(80, action), strategy=strategy) == ConflictCandidates()


@BOTH
def test_a_write_is_no_candidate_against_itself(strategy: CandidateStrategy) -> None:
    write = own(pending_at_start=(START,))
    assert candidates(write, pending(START, Action.COMPACTION), strategy=strategy) == ConflictCandidates()


# --- the pending matrix: this write against a pending one

INGESTIONS = pytest.mark.parametrize("action", [Action.COMMIT, Action.DELTA_COMMIT, Action.REPLACE_COMMIT])
UPDATES = pytest.mark.parametrize("allow_updates", [False, True], ids=["updates_rejected", "updates_allowed"])


@INGESTIONS
@UPDATES
def test_ingestion_against_pending_ingestion_no(action: Action, allow_updates: bool) -> None:
    assert candidates(own(), pending(60, action), allow_updates=allow_updates).pending == ()


def test_ingestion_against_pending_clustering_yes_if_updates_are_rejected() -> None:
    plan = pending(60, Action.CLUSTERING)
    assert candidates(own(), plan, allow_updates=False).pending == (plan,)


def test_ingestion_against_pending_clustering_no_if_updates_are_allowed() -> None:
    assert candidates(own(), pending(60, Action.CLUSTERING), allow_updates=True).pending == ()


@UPDATES
def test_ingestion_against_pending_compaction_yes(allow_updates: bool) -> None:
    plan = pending(60, Action.COMPACTION)
    assert candidates(own(), plan, allow_updates=allow_updates).pending == (plan,)


@INGESTIONS
def test_clustering_against_pending_ingestion_yes_if_updates_are_allowed(action: Action) -> None:
    other = pending(60, action)
    assert candidates(own(WriteKind.CLUSTERING), other, allow_updates=True).pending == (other,)


@INGESTIONS
def test_clustering_against_pending_ingestion_no_if_updates_are_rejected(action: Action) -> None:
    assert candidates(own(WriteKind.CLUSTERING), pending(60, action), allow_updates=False).pending == ()


@UPDATES
def test_clustering_against_pending_clustering_no(allow_updates: bool) -> None:
    plan = pending(60, Action.CLUSTERING)
    assert candidates(own(WriteKind.CLUSTERING), plan, allow_updates=allow_updates).pending == ()


@UPDATES
def test_clustering_against_pending_compaction_no(allow_updates: bool) -> None:
    plan = pending(60, Action.COMPACTION)
    assert candidates(own(WriteKind.CLUSTERING), plan, allow_updates=allow_updates).pending == ()


@UPDATES
@pytest.mark.parametrize("kind", [WriteKind.COMPACTION, WriteKind.LOG_COMPACTION])
def test_compaction_is_checked_when_it_is_scheduled_and_against_nothing_here(
    kind: WriteKind, allow_updates: bool
) -> None:
    timeline = (pending(10), pending(20, Action.CLUSTERING), pending(30, Action.COMPACTION), completed(60, 70))
    assert candidates(own(kind), *timeline, allow_updates=allow_updates) == ConflictCandidates()


@UPDATES
def test_pending_log_compaction_disturbs_no_writer(allow_updates: bool) -> None:
    plan = pending(60, Action.LOG_COMPACTION)
    for kind in (WriteKind.INGESTION, WriteKind.CLUSTERING):
        assert candidates(own(kind), plan, allow_updates=allow_updates).pending == ()


def test_the_kind_of_a_pending_instant_follows_from_its_action() -> None:
    assert pending_kind(pending(1, Action.REPLACE_COMMIT)) is WriteKind.INGESTION
    assert pending_kind(pending(1, Action.CLUSTERING)) is WriteKind.CLUSTERING
    assert pending_kind(pending(1, Action.COMPACTION)) is WriteKind.COMPACTION
    assert pending_kind(pending(1, Action.CLEAN)) is None


# --- cancellable plans


@pytest.mark.parametrize("action", [Action.CLUSTERING, Action.COMPACTION])
def test_ingestion_ignores_a_cancellable_pending_plan(action: Action) -> None:
    assert candidates(own(), pending(60, action), cancellable=True).pending == ()


@pytest.mark.parametrize("kind", [WriteKind.CLUSTERING, WriteKind.COMPACTION, WriteKind.LOG_COMPACTION])
def test_a_cancellable_plan_yields_to_every_pending_write(kind: WriteKind) -> None:
    timeline = (pending(10), pending(20, Action.CLUSTERING), pending(60, Action.COMPACTION))
    assert candidates(own(kind, is_cancellable=True), *timeline).pending == timeline


def test_a_cancellable_plan_does_not_yield_to_another_cancellable_one() -> None:
    plan = pending(60, Action.CLUSTERING)
    assert candidates(own(WriteKind.CLUSTERING, is_cancellable=True), plan, cancellable=True).pending == ()


def test_a_cancellable_plan_aborts_once_a_writer_committed_to_its_files() -> None:
    winner = completed(60, 70, Action.DELTA_COMMIT)
    for kind in (WriteKind.CLUSTERING, WriteKind.COMPACTION):
        found = conflict(
            own(kind, is_cancellable=True), winner, touched={60: touches(WriteKind.INGESTION)}, cancellable=True
        )
        assert found == Conflict(winner, (GROUP,))


# --- overlap


def test_the_same_file_group_is_a_conflict_that_names_instant_and_groups() -> None:
    winner = completed(60, 70)
    write = own(groups=(GROUP, OTHER_GROUP))
    found = conflict(write, winner, touched={60: touches(WriteKind.INGESTION, OTHER_GROUP, FileGroupId("p", "f3"))})
    assert found == Conflict(winner, (OTHER_GROUP,))


def test_different_file_groups_do_not_conflict() -> None:
    touched = {60: touches(WriteKind.INGESTION, OTHER_GROUP)}
    assert conflict(own(), completed(60, 70), touched=touched) is None


def test_the_same_file_id_in_another_partition_is_another_file_group() -> None:
    touched = {60: touches(WriteKind.INGESTION, FileGroupId("q", "f1"))}
    assert conflict(own(), completed(60, 70), touched=touched) is None


def test_the_first_of_several_conflicts_is_told_completed_ones_before_pending_ones() -> None:
    timeline = (pending(10, Action.CLUSTERING), completed(60, 80), completed(70, 75))
    touched = {10: touches(WriteKind.CLUSTERING), 60: touches(WriteKind.INGESTION), 70: touches(WriteKind.INGESTION)}
    found = conflict(own(pending_at_start=(10,)), *timeline, touched=touched)
    assert found is not None
    assert found.instant == timeline[1]


def test_only_candidates_are_looked_into() -> None:
    timeline = (completed(10, 40), pending(60), completed(70, 80, Action.CLEAN))
    assert conflict(own(), *timeline, touched={}) is None


def test_a_completed_clustering_that_replaced_the_file_group_is_a_conflict() -> None:
    winner = completed(10, 60, Action.REPLACE_COMMIT)
    found = conflict(own(pending_at_start=(10,)), winner, touched={10: touches(WriteKind.CLUSTERING)})
    assert found == Conflict(winner, (GROUP,))


def test_a_pending_clustering_of_the_file_group_is_a_conflict_unless_updates_are_allowed() -> None:
    plan = pending(10, Action.CLUSTERING)
    write = own(pending_at_start=(10,))
    touched = {10: touches(WriteKind.CLUSTERING)}
    assert conflict(write, plan, touched=touched) == Conflict(plan, (GROUP,))
    assert conflict(write, plan, touched=touched, allow_updates=True) is None


def test_clustering_yields_to_ingestion_that_committed_although_updates_are_rejected_here() -> None:
    winner = completed(60, 70)
    found = conflict(own(WriteKind.CLUSTERING), winner, touched={60: touches(WriteKind.INGESTION)})
    assert found == Conflict(winner, (GROUP,))


def test_completed_log_compaction_disturbs_no_writer() -> None:
    other = completed(60, 70, Action.DELTA_COMMIT)
    assert conflict(own(), other, touched={60: touches(WriteKind.LOG_COMPACTION)}) is None


def test_two_writers_that_create_the_same_bucket_conflict_although_their_file_ids_differ() -> None:
    mine = FileGroupId("p", "00000003-aaaa-4000-8000-000000000000-0")
    theirs = FileGroupId("p", "00000003-bbbb-4000-8000-000000000000-0")
    winner = completed(60, 70)
    write = own(groups=(mine,))
    touched = {60: touches(WriteKind.INGESTION, theirs)}
    assert conflict(write, winner, touched=touched) is None
    assert conflict(write, winner, touched=touched, by_bucket=True) == Conflict(winner, (mine,))


def test_different_buckets_and_the_same_bucket_of_another_partition_do_not_conflict() -> None:
    mine = FileGroupId("p", "00000003-aaaa-0")
    others = [FileGroupId("p", "00000004-aaaa-0"), FileGroupId("q", "00000003-aaaa-0")]
    assert not overlapping_groups(own=[mine], other=others, by_bucket=True)


def test_file_ids_without_a_bucket_number_are_compared_whole() -> None:
    first, second = FileGroupId("p", "0000000a-aaaa-0"), FileGroupId("p", "0000000a-bbbb-0")
    assert not overlapping_groups(own=[first], other=[second], by_bucket=True)
    assert overlapping_groups(own=[first], other=[first], by_bucket=True)
    assert overlapping_groups(own=[second, first], other=[first, second], by_bucket=True) == (first, second)


# --- the compaction anomaly: t0 a compaction, t1 a writer, t2 a compaction plan, t3 a writer


@pytest.mark.parametrize("is_done", [False, True], ids=["t2_pending", "t2_completed"])
def test_the_writer_that_did_not_see_the_compaction_plan_must_not_commit_beside_it(is_done: bool) -> None:
    t2 = completed(60, 70) if is_done else pending(60, Action.COMPACTION)
    t0 = completed(10, 20)
    found = conflict(own(), t0, t2, touched={60: touches(WriteKind.COMPACTION)})
    assert found == Conflict(t2, (GROUP,))


@pytest.mark.parametrize("is_done", [False, True], ids=["t2_pending", "t2_completed"])
def test_the_writer_that_saw_the_compaction_plan_commits_on_top_of_it(is_done: bool) -> None:
    t2 = completed(60, 90) if is_done else pending(60, Action.COMPACTION)
    t3 = own(start=80, pending_at_start=(60,))
    assert conflict(t3, t2, touched={60: touches(WriteKind.COMPACTION)}) is None


def test_the_compaction_itself_commits_whatever_was_written_meanwhile() -> None:
    t1, t3 = completed(50, 65, Action.DELTA_COMMIT), completed(80, 90, Action.DELTA_COMMIT)
    assert conflict(own(WriteKind.COMPACTION, start=60, pending_at_start=(50,)), t1, t3, touched={}) is None


# --- settings


@pytest.mark.parametrize("package", ["", PACKAGE])
@pytest.mark.parametrize(
    ("name", "strategy"),
    [
        ("SimpleConcurrentFileWritesConflictResolutionStrategy", CandidateStrategy.START_TIMESTAMP),
        ("EndTimestampBasedConcurrentFileWritesConflictResolutionStrategy", CandidateStrategy.END_TIMESTAMP),
    ],
)
def test_the_strategy_is_chosen_by_the_class_name_of_java(package: str, name: str, strategy: CandidateStrategy) -> None:
    assert ConflictSettings.from_options({KEY: package + name}).strategy is strategy


def test_the_default_strategy_goes_by_start_and_rejects_updates_of_files_in_clustering() -> None:
    assert ConflictSettings.from_options({}) == ConflictSettings(CandidateStrategy.START_TIMESTAMP, False)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("BucketIndexConcurrentFileWritesConflictResolutionStrategy", "compared by bucket without it"),
        ("IngestionPrimaryWriterBasedConflictResolutionStrategy", "SparkAllowUpdateStrategy"),
        ("PreferWriterConflictResolutionStrategy", "SparkAllowUpdateStrategy"),
    ],
)
def test_a_removed_strategy_is_refused_with_a_hint(name: str, hint: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"remove {name}.*{hint}"):
        ConflictSettings.from_options({KEY: PACKAGE + name})


def test_an_unknown_strategy_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidRequestError, match=r"SimpleConcurrent.* or EndTimestampBased"):
        ConflictSettings.from_options({KEY: "com.example.Ours"})


def test_the_update_strategy_is_chosen_by_the_class_name_of_java() -> None:
    key = "hoodie.clustering.updates.strategy"
    package = "org.apache.hudi.client.clustering.update.strategy."
    assert ConflictSettings.from_options({key: package + "SparkAllowUpdateStrategy"}).allow_updates
    assert not ConflictSettings.from_options({key: "SparkRejectUpdateStrategy"}).allow_updates
    with pytest.raises(InvalidRequestError, match="SparkRejectUpdateStrategy or SparkAllowUpdateStrategy"):
        ConflictSettings.from_options({key: "Ours"})


def test_a_harmless_candidate_does_not_end_the_search() -> None:
    """A log compaction is in nobody's way; the commit after it is."""
    harmless, other = completed(60, 65), completed(70, 75)
    touched = {60: touches(WriteKind.LOG_COMPACTION), 70: touches(WriteKind.INGESTION)}
    found = conflict(own(), harmless, other, touched=touched)
    assert found == Conflict(instant=other, file_groups=(GROUP,))


def test_of_two_pending_plans_only_the_one_that_yields_is_passed_over() -> None:
    yielding, firm = pending(60, Action.COMPACTION), pending(70, Action.COMPACTION)
    found = select_candidates(
        own(),
        timeline=(yielding, firm),
        settings=ConflictSettings(CandidateStrategy.START_TIMESTAMP, False),
        is_cancellable=lambda instant: instant == yielding,
    )
    assert found.pending == (firm,)
