"""Whatever is archived in whatever portions, the history gives it back: each instant once, in order, byte for byte."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tablekeeper.config.archive_settings import ArchiveSettings
from tablekeeper.config.clean_settings import CleanPolicy, CleanSettings
from tablekeeper.config.table_config import TableConfig
from tablekeeper.format.history import ArchivedInstant, decode_history_file, encode_history_file
from tablekeeper.model import Action, CompletionTime, Instant, RequestedTime, State
from tablekeeper.services.archive import ActiveAction, ArchiveView, plan_archive
from tablekeeper.storage import MemoryStorage, Storage, forget_memory
from tablekeeper.timeline import Timeline
from tablekeeper.timeline.history import archived_completions, iterate_history, load_history, load_history_snapshot
from tablekeeper.timeline.history_writer import MergeLimits, append_history, clean_history, merge_history
from tests.support.fake_runtime import FakeClock
from tests.support.step_faults import one_thread_runtime
from tests.support.table_builder import TableBuilder

__all__: list[str] = []

DIRECTORY = ".hoodie/timeline/history"
COMPLETED = (Action.COMMIT, Action.DELTA_COMMIT, Action.REPLACE_COMMIT, Action.CLEAN, Action.ROLLBACK)
SPACES = itertools.count()


@pytest.fixture(scope="module")
def config() -> Iterator[TableConfig]:
    tables = TableBuilder()
    yield tables.create().config
    tables.forget()


@contextmanager
def fresh_store(clock: FakeClock) -> Iterator[Storage]:
    name = f"histories-{next(SPACES)}"
    yield MemoryStorage(f"memory://{name}/t", runtime=one_thread_runtime(clock, process=1))
    forget_memory(name)


contents = st.none() | st.binary(min_size=1, max_size=40)


@st.composite
def archived_instants(draw: st.DrawFn) -> ArchivedInstant:
    number = draw(st.integers(0, 60))
    time = f"20240101{number:09d}" if draw(st.booleans()) else f"{20240101000000 + number}"
    instant = Instant(
        RequestedTime(time),
        draw(st.sampled_from(COMPLETED)),
        State.COMPLETED,
        CompletionTime(f"20250101{draw(st.integers(0, 999)):09d}"),
    )
    return ArchivedInstant(instant, draw(contents), draw(contents))


@settings(deadline=None, max_examples=60)
@given(
    runs=st.lists(st.lists(archived_instants(), min_size=1, max_size=6), min_size=1, max_size=12),
    files=st.integers(2, 4),
    kept=st.integers(1, 3),
)
def test_every_instant_comes_back_once_and_whole_after_any_number_of_archives_merges_and_cleans(
    config: TableConfig, runs: list[list[ArchivedInstant]], files: int, kept: int
) -> None:
    expected: dict[tuple[RequestedTime, Action], ArchivedInstant] = {}
    clock = FakeClock()
    with fresh_store(clock) as storage:
        for run in runs:
            # The second time an instant is archived it holds the same, as after an archive that died.
            again = [expected.setdefault((a.instant.requested_at, a.instant.action), a) for a in run]
            snapshot = append_history(storage, load_history_snapshot(storage, DIRECTORY), again, row_group_instants=2)
            clock.advance(1)
            merged = merge_history(storage, snapshot, MergeLimits(files, 1 << 20))
            clock.advance(1)
            clean_history(storage, merged, manifests_kept=kept)
            clock.advance(1)
        ordered = [expected[key] for key in sorted(expected, key=lambda key: (key[0].order, key[1].value))]
        assert load_history(storage, config) == ordered
        assert list(iterate_history(storage, config)) == ordered[::-1]
        assert load_history(storage, config, with_contents=False) == [ArchivedInstant(a.instant) for a in ordered]
        completion_of = archived_completions(storage, config)
        for archived in ordered:
            same_time = {
                a.instant.completed_at for a in ordered if a.instant.requested_at == archived.instant.requested_at
            }
            assert completion_of(archived.instant.requested_at) in same_time
        manifests = [f.name for f in storage.list_files(DIRECTORY) if f.name.startswith("manifest_")]
        assert len(manifests) <= kept


@settings(deadline=None)
@given(instants=st.lists(archived_instants(), max_size=20), size=st.integers(1, 7))
def test_a_history_file_gives_back_what_was_put_in_whatever_the_size_of_its_row_groups(
    instants: list[ArchivedInstant], size: int
) -> None:
    decoded = decode_history_file(encode_history_file(instants, row_group_instants=size), file="f")
    assert decoded == sorted(instants, key=lambda archived: archived.instant.requested_at)


@st.composite
def views(draw: st.DrawFn) -> ArchiveView:
    actions: list[ActiveAction] = []
    others: list[Instant] = []
    for number in range(draw(st.integers(0, 25))):
        requested = RequestedTime(f"20240101{number:09d}")
        action = draw(st.sampled_from(COMPLETED))
        if draw(st.integers(0, 9)) == 0:
            others.append(Instant(requested, action, State.INFLIGHT))
            continue
        completed = CompletionTime(f"20240101{number + draw(st.integers(0, 3)):09d}")
        instant = Instant(requested, action, State.COMPLETED, completed)
        actions.append(ActiveAction(instant, (instant,), size=1))
        if action.writes_data and draw(st.integers(0, 14)) == 0:
            others.append(Instant(requested, Action.SAVEPOINT, State.COMPLETED, completed))
    timeline = Timeline.of([*(a.instant for a in actions), *others])
    return ArchiveView(timeline, tuple(actions), draw(st.booleans()), "UTC")


@settings(deadline=None)
@given(view=views(), keep=st.integers(1, 6), more=st.integers(1, 4), policy=st.sampled_from(CleanPolicy))
def test_a_plan_takes_a_beginning_of_the_timeline_and_leaves_what_must_stay(
    view: ArchiveView, keep: int, more: int, policy: CleanPolicy
) -> None:
    keeping = ArchiveSettings(keep_min=keep, keep_max=keep + more, clean=CleanSettings(policy=policy, commits=2))
    plan = plan_archive(view, keeping)
    going = [action.instant for action in plan.actions]
    commits = list(view.timeline.completed_writes)
    moved = [instant for instant in going if instant.action.writes_data]
    assert moved == commits[: len(moved)]
    assert len(commits) - len(moved) >= min(keep, len(commits))
    assert not moved or len(commits) > keep + more
    stays = [i.requested_at for i in view.timeline if i.is_pending or i.action is Action.SAVEPOINT]
    assert all(instant.requested_at < time for instant in going for time in stays)
    assert {i.action for i in going} <= set(COMPLETED)
    reached = max((instant.requested_at for instant in going), default=None)
    left = Timeline.of((i for i in view.timeline if i not in going), archive=lambda: reached)
    # What counted as completed still does, and what did not still does not.
    for instant in view.timeline:
        if instant.action.writes_data:
            assert left.is_completed(instant.requested_at) == view.timeline.is_completed(instant.requested_at)
    assert plan_archive(view, replace(keeping, max_instants=3)).actions == plan.actions[:3]
