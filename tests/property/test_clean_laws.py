"""Cleans against a slow model, on random histories with overlapping writers, compactions, overwrites and savepoints.

The model knows nothing of slices and windows: it asks for every moment that must stay readable what a reader would
open, and calls everything else unneeded.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tablekeeper.config.clean_settings import CleanPolicy, CleanSettings
from tablekeeper.config.table_config import TableConfig, parse_table_config
from tablekeeper.format.plans import CleanMetadata
from tablekeeper.model import Action, CompletionTime, FileGroupId, Instant, RequestedTime, State
from tablekeeper.services.clean.plan import CleanDraft, CleanView, Holds, plan_clean
from tablekeeper.services.clean.view import LastClean, plan_scope
from tablekeeper.snapshot.retention import plan_retained
from tablekeeper.snapshot.slices import SliceRules, decode_partition_files, plan_slices
from tablekeeper.timeline import Timeline

__all__: list[str] = []

PARTITIONS = ("p", "q", "r")
SEEDS = st.integers(0, 2**32)


def at(number: int) -> str:
    return f"20240101{number:09d}"


def config(*, mor: bool) -> TableConfig:
    properties = {
        "hoodie.table.name": "t",
        "hoodie.table.type": "MERGE_ON_READ" if mor else "COPY_ON_WRITE",
        "hoodie.table.version": "9",
        "hoodie.table.partition.fields": "p",
        "hoodie.table.timeline.timezone": "UTC",
    }
    return parse_table_config(properties, file="hoodie.properties")


@dataclass
class Work:
    """An action that has begun: what it does to the table once it completes."""

    requested: int
    action: Action
    files: list[tuple[FileGroupId, str]] = field(default_factory=list)
    replaced: list[FileGroupId] = field(default_factory=list)
    groups: list[FileGroupId] = field(default_factory=list)
    needs: list[str] = field(default_factory=list)
    base: int = 0

    @property
    def partitions(self) -> frozenset[str]:
        return frozenset(group.partition for group in self.groups)


class Table:
    """A table as its timeline and its file names, moved on at random by actions that overlap."""

    def __init__(self, seed: int, *, mor: bool) -> None:
        self.random = random.Random(seed)
        self.config = config(mor=mor)
        self.mor = mor
        self.now = 0
        self.done: dict[int, tuple[Work, int]] = {}
        self.open: list[Work] = []
        self.files: dict[str, set[str]] = defaultdict(set)
        self.groups: set[FileGroupId] = set()
        self.replaced: dict[FileGroupId, int] = {}
        self.saved: dict[int, dict[str, frozenset[str]]] = {}

    def run(self, steps: int) -> Table:
        for _ in range(steps):
            kinds = ["begin"] * 4 + ["complete"] * 4 + ["save", "drop"]
            getattr(self, f"_{self.random.choice(kinds)}")()
        return self

    @property
    def timeline(self) -> Timeline:
        done = [
            Instant(RequestedTime(at(n)), work.action.completed_as, State.COMPLETED, CompletionTime(at(completed)))
            for n, (work, completed) in self.done.items()
        ]
        pending = [Instant(RequestedTime(at(work.requested)), work.action, State.INFLIGHT) for work in self.open]
        return Timeline.of([*done, *pending])

    @property
    def holds(self) -> Holds:
        saved: dict[str, set[str]] = defaultdict(set)
        for files in self.saved.values():
            for partition, names in files.items():
                saved[partition] |= names
        plans = [work for work in self.open if work.action is Action.COMPACTION]
        return Holds(
            savepointed={partition: frozenset(names) for partition, names in saved.items()},
            planned_bases={work.groups[0]: RequestedTime(at(work.base)) for work in plans},
        )

    def view(self, settings: CleanSettings, *, partitions: Iterable[str] = PARTITIONS) -> CleanView:
        timeline = self.timeline
        return CleanView(
            config=self.config,
            timeline=timeline,
            earliest=plan_retained(timeline, settings, now_ms=0, zone="UTC"),
            files={p: decode_partition_files(p, [(name, 1) for name in sorted(self.files[p])]) for p in partitions},
            replaced={group: RequestedTime(at(when)) for group, when in self.replaced.items()},
            holds=self.holds,
        )

    def seen(self, as_of: str | None, *, without: frozenset[str] = frozenset()) -> dict[FileGroupId, frozenset[str]]:
        """The files that a reader opens, by file group."""
        rules = SliceRules(
            timeline=self.timeline,
            version=9,
            as_of=None if as_of is None else RequestedTime(as_of),
            replaced={group: RequestedTime(at(when)) for group, when in self.replaced.items()},
        )
        found = {}
        for partition in PARTITIONS:
            names = [(name, 1) for name in sorted(self.files[partition] - without)]
            for group, slices in plan_slices(decode_partition_files(partition, names), rules).items():
                base = [slices[0].base.name] if slices[0].base is not None else []
                found[group] = frozenset([*base, *(log.name for log in slices[0].logs)])
        return found

    def tick(self) -> int:
        self.now += 1
        return self.now

    def _begin(self) -> None:
        busy = {group for work in self.open for group in work.groups if work.action is not Action.DELTA_COMMIT}
        written = {group for work in self.open for group in work.groups}
        live = sorted(self.groups - set(self.replaced))
        free = [group for group in live if group not in written]
        kinds = ["insert", *["update"] * 4, "replace", *(["compact"] * 2 if self.mor else [])]
        kind = self.random.choice(kinds)
        if kind == "update" and self.mor:
            # Logs are written on top of whatever is being compacted, and beside each other.
            self._write_logs([g for g in live if g not in busy or self._is_compacted(g)])
        elif kind == "update":
            self._write_bases(free)
        elif kind == "compact":
            self._compact(free)
        elif kind == "replace":
            self._replace(free)
        else:
            self._write_bases([FileGroupId(self.random.choice(PARTITIONS), f"g{self.now}-0")])

    def _is_compacted(self, group: FileGroupId) -> bool:
        return any(group in work.groups for work in self.open if work.action is Action.COMPACTION)

    def _pick(self, groups: list[FileGroupId]) -> list[FileGroupId]:
        return self.random.sample(groups, min(len(groups), self.random.randint(1, 3)))

    def _write_bases(self, groups: list[FileGroupId]) -> None:
        picked = self._pick(groups)
        if picked:
            action = Action.DELTA_COMMIT if self.mor else Action.COMMIT
            work = Work(self.tick(), action, groups=picked)
            work.files = [(group, f"{group.file_id}_0-0-0_{at(work.requested)}.parquet") for group in picked]
            self._start(work)

    def _write_logs(self, groups: list[FileGroupId]) -> None:
        picked = self._pick(groups)
        if picked:
            work = Work(self.tick(), Action.DELTA_COMMIT, groups=picked)
            work.files = [(group, f".{group.file_id}_{at(work.requested)}.log.1_0-0-0") for group in picked]
            self._start(work)

    def _compact(self, groups: list[FileGroupId]) -> None:
        seen = self.seen(None)
        groups = [group for group in groups if any(".log." in name for name in seen.get(group, ()))]
        if not groups:
            return
        group = self.random.choice(groups)
        bases = [name for name in seen[group] if ".log." not in name]
        work = Work(self.tick(), Action.COMPACTION, groups=[group], needs=sorted(seen[group]))
        work.base = int(bases[0].rpartition("_")[2][8:17])
        work.files = [(group, f"{group.file_id}_0-0-0_{at(work.requested)}.parquet")]
        self._start(work)

    def _replace(self, groups: list[FileGroupId]) -> None:
        picked = [group for group in self._pick(groups) if group in self.seen(None)]
        if picked:
            new = FileGroupId(picked[0].partition, f"g{self.now}-0")
            work = Work(self.tick(), Action.REPLACE_COMMIT, replaced=picked, groups=[*picked, new])
            if self.random.random() < 0.7:
                work.files = [(new, f"{new.file_id}_0-0-0_{at(work.requested)}.parquet")]
            self._start(work)

    def _start(self, work: Work) -> None:
        self.open.append(work)
        for group, name in work.files:
            self.files[group.partition].add(name)

    def _complete(self) -> None:
        if not self.open:
            return
        work = self.open.pop(self.random.randrange(len(self.open)))
        self.done[work.requested] = (work, self.tick())
        self.groups |= {group for group, _ in work.files}
        self.replaced |= dict.fromkeys(work.replaced, work.requested)

    def _save(self) -> None:
        """Protect what readers see now, as a savepoint of the newest commit does."""
        if self.done and self.random.random() < 0.3:
            names: dict[str, set[str]] = defaultdict(set)
            for group, files in self.seen(None).items():
                names[group.partition] |= files
            newest = max(self.done, key=lambda n: self.done[n][1])
            self.saved[newest] = {partition: frozenset(each) for partition, each in names.items()}

    def _drop(self) -> None:
        """Take back a write that did not complete, or a savepoint."""
        if self.open and self.random.random() < 0.3:
            work = self.open.pop(self.random.randrange(len(self.open)))
            for group, name in work.files:
                self.files[group.partition].discard(name)


def gone(draft: CleanDraft) -> frozenset[str]:
    return frozenset(file.name for files in draft.files.values() for file in files)


def moments(table: Table, earliest: RequestedTime) -> list[str | None]:
    """Every moment that must stay readable: now, each one from the oldest retained commit on, and right before it."""
    before = f"{int(earliest.value) - 1}"
    return [None, before, *(at(n) for n in range(table.now + 1) if at(n) >= earliest.value)]


def visible(table: Table) -> frozenset[str]:
    """All files that committed slices are made of."""
    names: set[str] = set()
    for work, _ in table.done.values():
        names.update(name for _, name in work.files)
    return frozenset(names)


@pytest.mark.parametrize("mor", [False, True], ids=["cow", "mor"])
@given(seed=SEEDS, commits=st.integers(1, 6), steps=st.integers(10, 60))
def test_by_commits_exactly_what_no_reader_of_the_window_opens_goes(
    mor: bool, seed: int, commits: int, steps: int
) -> None:
    table = Table(seed, mor=mor).run(steps)
    settings = CleanSettings(commits=commits)
    view = table.view(settings)
    went = gone(plan_clean(view, settings))
    if view.earliest is None:
        assert not went
        return
    start = view.earliest.requested_at
    needed: set[str] = set()
    for moment in moments(table, start):
        opened = table.seen(moment)
        assert table.seen(moment, without=went) == opened, moment
        needed.update(name for names in opened.values() for name in names)
    held = {name for names in table.holds.savepointed.values() for name in names}
    held |= {name for work in table.open for name in work.needs}
    assert not went & held
    assert went <= visible(table) - needed
    # What stays although no reader opens it has a reason: it was replaced inside the window, or shares a held slice.
    recent = {group.file_id for group, when in table.replaced.items() if at(when) >= start.value}
    stays = [n for n in visible(table) - needed - went if n.lstrip(".").partition("_")[0] not in recent]
    for name in stays:
        assert _shares_a_slice(table, name, held), name


def _shares_a_slice(table: Table, name: str, held: set[str]) -> bool:
    rules = SliceRules(timeline=table.timeline, version=9)
    for partition in PARTITIONS:
        files = decode_partition_files(partition, [(each, 1) for each in sorted(table.files[partition])])
        for slices in plan_slices(files, rules).values():
            for each in slices:
                names = {log.name for log in each.logs} | ({each.base.name} if each.base is not None else set())
                planned = table.holds.planned_bases.get(each.group)
                is_planned = planned is not None and each.base_instant >= planned
                if name in names and (names & held or is_planned):
                    return True
    return False


@pytest.mark.parametrize("mor", [False, True], ids=["cow", "mor"])
@given(seed=SEEDS, keep=st.integers(1, 4), steps=st.integers(10, 60))
def test_by_versions_the_newest_slices_stay_and_later_moments_read_the_same(
    mor: bool, seed: int, keep: int, steps: int
) -> None:
    table = Table(seed, mor=mor).run(steps)
    settings = CleanSettings(policy=CleanPolicy.VERSIONS, versions=keep)
    draft = plan_clean(table.view(settings), settings)
    went = gone(draft)
    readable = [None, *(at(n) for n in range(table.now + 1) if at(n) >= draft.readable_from)]
    for moment in readable:
        assert table.seen(moment, without=went) == table.seen(moment), moment
    held = {name for names in table.holds.savepointed.values() for name in names}
    assert not went & (held | {name for work in table.open for name in work.needs})
    bases: dict[str, list[str]] = defaultdict(list)
    for name in visible(table):
        if ".log." not in name:
            bases[name.partition("_")[0]].append(name)
    replaced = {group.file_id for group in table.replaced}
    for file_id, names in bases.items():
        newest = sorted(names, reverse=True)[:keep]
        assert file_id in replaced or not went & set(newest)


@pytest.mark.parametrize("by_versions", [False, True], ids=["commits", "versions"])
@pytest.mark.parametrize("mor", [False, True], ids=["cow", "mor"])
@given(seed=SEEDS, amount=st.integers(1, 4), more=st.integers(1, 40))
def test_a_clean_of_touched_partitions_finds_all_that_a_clean_of_all_would(
    by_versions: bool, mor: bool, seed: int, amount: int, more: int
) -> None:
    settings = CleanSettings(commits=amount)
    if by_versions:
        settings = CleanSettings(policy=CleanPolicy.VERSIONS, versions=amount)
    table = Table(seed, mor=mor).run(30)
    first = plan_clean(table.view(settings), settings)
    metadata = CleanMetadata(
        started_at=at(table.now),
        duration_ms=1,
        files_deleted=1,
        earliest_commit_to_retain=first.retained.value if first.retained is not None else "",
        extra_metadata=first.extra_metadata(is_partitioned=True),
    )
    requested = RequestedTime(at(table.tick()))
    clean = Instant(requested, Action.CLEAN, State.COMPLETED, CompletionTime(at(table.tick())))
    for names in table.files.values():
        names.difference_update(gone(first))
    table.run(more)
    view = table.view(settings)
    scope = plan_scope(view.timeline, settings, earliest=view.earliest, last=LastClean(clean, metadata))
    whole = plan_clean(view, settings)
    if scope.instants is None:
        # The first clean had no window, or found an empty timeline.
        assert first.retained is None
        assert not by_versions or "archived" in scope.reason
        return
    touched = set(scope.also)
    for instant in scope.instants:
        touched |= table.done[int(instant.requested_at.value[8:])][0].partitions
    assert set(whole.files) <= touched
    part = plan_clean(table.view(settings, partitions=sorted(touched)), settings)
    assert gone(part) == gone(whole)
