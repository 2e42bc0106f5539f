"""Incremental planning against full planning, over random histories.

After every few events both are asked what they would do, with the same settings: the answers have to be the same, slice
for slice, so that nothing which full planning would find was lost on the way, and nothing else was found. At the end
all that is pending is executed or given up, and plans follow each other until there is nothing left: then full
planning must find nothing either.

Events: commits that overlap each other and the plans, writes that fail, plans with filters, thresholds and bounds that
change, plans that wait, complete out of order or are given up, plans of Java's, commits in the middle of planning,
rollbacks of completed commits, restores, archiving.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from tablekeeper.config.service_settings import ClusteringSettings, CompactionSettings, PartitionFilter
from tablekeeper.format.plans import (
    CompactionPlan,
    decode_compaction_plan,
    encode_compaction_plan,
)
from tablekeeper.model import Action, FileGroupId, Instant, RequestedTime, ServiceKind, State, Work
from tablekeeper.services.plans.service import Service
from tablekeeper.timeline import instant_path, load_content
from tests.support.planning_world import MB, PlanningWorld, group

__all__: list[str] = []

PARTITIONS = tuple(f"city={name}" for name in ("la", "nyc", "par", "rio", "sf"))
DAYS = tuple(f"city=2025-12-{day}" for day in ("27", "28", "29", "30", "31"))
RANKING_STRATEGIES = (
    "DayBasedCompactionStrategy",
    "DayBasedCompactionStrategy,LogFileSizeBasedCompactionStrategy",
    "BoundedPartitionAwareCompactionStrategy",
    "UnBoundedPartitionAwareCompactionStrategy",
)
GROUPS = 3
EVENTS = 22
HISTORIES_A_TEST = 50
HISTORIES_A_SERVICE = 400
RANKED_HISTORIES = 100

Complete = Callable[..., Instant]


@dataclass
class History:
    """One random history of a table, and what of it is under way."""

    seed: int
    kind: ServiceKind
    partitions: tuple[str, ...] = PARTITIONS
    world: PlanningWorld = field(default_factory=PlanningWorld)
    writes: dict[RequestedTime, tuple[Complete, frozenset[FileGroupId]]] = field(default_factory=dict)
    plans: list[RequestedTime] = field(default_factory=list)
    other_plans: list[RequestedTime] = field(default_factory=list)
    cancellable: set[RequestedTime] = field(default_factory=set)
    log: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.regex: str | None = None

    @property
    def other_kind(self) -> ServiceKind:
        return ServiceKind.COMPACTION if self.kind is ServiceKind.CLUSTERING else ServiceKind.CLUSTERING

    def run(self) -> None:
        for _ in range(EVENTS):
            self.step()
            if self.random.random() < 0.3:
                self.compare()
        self.drain()
        self.world.forget()

    def step(self) -> None:
        names, weights = zip(*EVENT_WEIGHTS.items(), strict=True)
        event = self.random.choices(names, weights)[0]
        self.log.append(event)
        getattr(self, event)()

    def compare(self) -> None:
        """What incremental planning would do now is what full planning would do now."""
        if self.kind is ServiceKind.LOG_COMPACTION and self.writes:
            # Behind a write that is under way, logs that are merged already look as if they were not.
            return
        service = self.service()
        cancellable = self.random.random() < 0.3
        incremental = self.world.draft(service, cancellable=cancellable)
        full = self.world.draft(service, incremental=False, cancellable=cancellable)
        assert as_set(incremental.draft.work) == as_set(full.draft.work), self.story(incremental.window.why_full)

    def story(self, note: str) -> str:
        return f"seed {self.seed}, {self.kind.value}: {' · '.join(self.log)} ({note})"

    # Services

    def service(self, *, plain: bool = False) -> Service:
        """The service with settings as they are just now."""
        choose = self.random
        only: Callable[[str], bool] | None = None
        if not plain and choose.random() < 0.2:
            wanted = choose.sample(self.partitions, 2)
            only = wanted.__contains__
        if not plain and choose.random() < 0.1:
            self.regex = choose.choice((None, ".*[ao]$", "city=[l-r].*"))
        if self.kind is ServiceKind.CLUSTERING:
            return self.world.clustering(
                ClusteringSettings(
                    partition_regex=None if plain else self.regex,
                    small_file_bytes=300 * MB,
                    max_group_bytes=4 * MB,
                    max_groups=30 if plain else choose.choice((1, 3, 30)),
                ),
                only=only,
            )
        if self.kind is ServiceKind.LOG_COMPACTION:
            return self.world.log_compaction(only=only)
        names: tuple[str, ...] = ("LogFileSizeBasedCompactionStrategy",)
        if self.regex is not None and not plain:
            names = ("PartitionRegexBasedCompactionStrategy", *names)
        return self.world.compaction(
            CompactionSettings(
                strategy=",".join(names),
                partition_regex=self.regex,
                target_io_mb=512_000 if plain else choose.choice((5, 200, 512_000)),
                log_size_threshold=0 if plain else choose.choice((0, 0, 3 * MB)),
            ),
            only=only,
        )

    def other_service(self) -> Service:
        if self.other_kind is ServiceKind.CLUSTERING:
            return self.world.clustering(ClusteringSettings(max_groups=2))
        return self.world.compaction(CompactionSettings(target_io_mb=5))

    def plan(self) -> None:
        cancellable = self.random.random() < 0.3
        plan = self.world.schedule(self.service(), cancellable=cancellable)
        if plan is not None:
            self.plans.append(plan.instant)
            if cancellable:
                self.cancellable.add(plan.instant)

    def plan_as_java(self) -> None:
        """A plan that keeps only Java's rules about what is missing; without a filter, which nobody would know of."""
        if self.kind is not ServiceKind.COMPACTION:
            return
        service = self.world.compaction(CompactionSettings(target_io_mb=self.random.choice((5, 200, 512_000))))
        left_out = self.world.draft(service).draft.left_out
        plan = self.world.schedule(service)
        if plan is None:
            return
        self.plans.append(plan.instant)
        requested = Instant(plan.instant, Action.COMPACTION, State.REQUESTED)
        content = load_content(self.world.storage, self.world.config, requested)
        decoded = decode_compaction_plan(content, file="plan")
        unrecorded = {each.partition for each in left_out if each.reason == "in another plan"}
        others = {each.partition for each in left_out if each.comes_back and each.reason != "in another plan"}
        missing = tuple(p for p in decoded.missing_schedule_partitions if p not in unrecorded - others)
        javas = CompactionPlan(decoded.operations, missing_schedule_partitions=missing)
        self.world.storage.put(instant_path(self.world.config, requested), encode_compaction_plan(javas))

    def plan_elsewhere(self) -> None:
        """A plan of the other service, which plans file groups."""
        plan = self.world.schedule(self.other_service())
        if plan is not None:
            self.other_plans.append(plan.instant)

    def execute(self) -> None:
        self._end(self.plans, self.kind, carry_out=True)

    def execute_elsewhere(self) -> None:
        self._end(self.other_plans, self.other_kind, carry_out=True)

    def give_up(self) -> None:
        self._end(self.plans, self.kind, carry_out=False)

    def give_up_elsewhere(self) -> None:
        self._end(self.other_plans, self.other_kind, carry_out=False)

    def _end(self, plans: list[RequestedTime], kind: ServiceKind, *, carry_out: bool) -> None:
        if not plans:
            return
        instant = plans.pop(self.random.randrange(len(plans)))
        if carry_out and not self._is_stale(instant, kind):
            self.world.execute(instant, kind, mb=900 if kind is ServiceKind.CLUSTERING else self.random.choice((1, 4)))
        else:
            self.world.give_up(instant, kind)

    def _is_stale(self, instant: RequestedTime, kind: ServiceKind) -> bool:
        """Whether somebody else changed what the plan wants to rewrite, so that it has to yield."""
        groups = self.world.plan_at(instant, kind).file_groups
        for commit in self.world.timeline.completed_writes:
            assert commit.completed_at is not None
            if commit.completed_at.value > instant.value and groups & self.world.touched(commit):
                is_rewrite = commit.action is not Action.DELTA_COMMIT
                if is_rewrite or kind is ServiceKind.CLUSTERING:
                    return True
        return False

    # Writes

    def write(self) -> None:
        self.begin()
        self.complete(newest=True)

    def begin(self) -> None:
        """Start a write; groups that are being clustered are left alone, as writers do."""
        free = sorted(self._all_groups() - self._in_clustering())
        if not free:
            return
        chosen = self.random.sample(free, min(len(free), self.random.choice((1, 1, 2, 5))))
        complete = self.world.begin({each: self.random.randint(1, 4) for each in chosen})
        self.writes[self.world.timeline.pending[-1].requested_at] = (complete, frozenset(chosen))

    def complete(self, *, newest: bool = False) -> None:
        if not self.writes:
            return
        instant = max(self.writes) if newest else self.random.choice(sorted(self.writes))
        complete, groups = self.writes.pop(instant)
        if groups & self._in_clustering() or groups - self._all_groups():
            self._fail(instant)
        else:
            complete()

    def complete_in_the_middle_of_planning(self) -> None:
        if not self.writes:
            return
        planned = self.world.schedule(self.service(), meanwhile=self.complete)
        if planned is not None:
            self.plans.append(planned.instant)

    def fail(self) -> None:
        if self.writes:
            instant = self.random.choice(sorted(self.writes))
            del self.writes[instant]
            self._fail(instant)

    def _fail(self, instant: RequestedTime) -> None:
        found = self.world.timeline.find(instant)
        assert found is not None
        self.world.roll_back(found)

    def undo(self) -> None:
        """Roll the newest completed commit back, where nothing stands on it."""
        timeline = self.world.timeline
        commits = timeline.completed_writes_by_completion
        if len(commits) > 1 and not timeline.pending:
            self.world.roll_back(commits[-1])

    def restore(self) -> None:
        """Undo the newest commits."""
        timeline = self.world.timeline
        commits = timeline.completed_writes_by_completion
        if len(commits) > 3 and not timeline.pending:
            self.world.restore(*reversed(commits[-self.random.randint(1, 3) :]))

    def archive(self) -> None:
        """Move the oldest commits into the history, as far as nothing is pending before or among them."""
        timeline = self.world.timeline
        bound = timeline.pending[0].requested_at if timeline.pending else None
        old = [i for i in timeline.completed if bound is None or i.requested_at < bound][:-3]
        # Replaced groups would show again, and merged logs would no longer be known as such.
        kept = [i for i in old if i.action is Action.REPLACE_COMMIT or i.requested_at in timeline.log_compactions]
        if kept:
            old = [i for i in old if i.requested_at < kept[0].requested_at]
        old = [i for i in old if i.action is not Action.RESTORE][: self.random.randint(1, 6)]
        if old:
            self.world.archive(*old)

    def _all_groups(self) -> set[FileGroupId]:
        """Groups that a writer may write to: those that were not clustered away, and those that are still to come."""
        made = {group(partition, number) for partition in self.partitions for number in range(GROUPS)}
        replaced = [self.world.touched(i) for i in self.world.timeline.completed if i.action is Action.REPLACE_COMMIT]
        return made - {each for groups in replaced for each in groups}

    def _in_clustering(self) -> set[FileGroupId]:
        plans = self.plans if self.kind is ServiceKind.CLUSTERING else self.other_plans
        kept = [instant for instant in plans if instant not in self.cancellable]
        return {each for i in kept for each in self.world.plan_at(i, ServiceKind.CLUSTERING).file_groups}

    def drain(self) -> None:
        """End everything that is under way, and plan until there is nothing to do."""
        while self.writes:
            self.complete()
        while self.plans or self.other_plans:
            self._end(self.plans, self.kind, carry_out=self.random.random() < 0.5)
            self._end(self.other_plans, self.other_kind, carry_out=self.random.random() < 0.5)
        self.regex = None
        for _ in range(len(self.partitions) * GROUPS + 2):
            plan = self.world.schedule(self.service(plain=True))
            if plan is None:
                break
            self.world.execute(plan.instant, self.kind, mb=900)
        left = self.world.draft(self.service(plain=True), incremental=False).draft.work
        assert not left, self.story("work was lost")


@dataclass
class RankedHistory(History):
    """A history of partitions by day, with one strategy or filter that compares partitions, or looks at the day."""

    partitions: tuple[str, ...] = DAYS

    def __post_init__(self) -> None:
        super().__post_init__()
        self.most = self.random.randint(1, 3)
        self.strategy = self.random.choice(RANKING_STRATEGIES)
        self.filter = self.random.choice(list(PartitionFilter))

    def service(self, *, plain: bool = False) -> Service:
        choose = self.random
        only: Callable[[str], bool] | None = None
        if not plain and choose.random() < 0.2:
            only = choose.sample(self.partitions, 2).__contains__
        if not plain and choose.random() < 0.2:
            # Another hour, and so the turn of other partitions.
            self.world.clock.advance(choose.choice((600, 1_800)))
        if self.kind is ServiceKind.CLUSTERING:
            settings = ClusteringSettings(
                partition_filter=self.filter,
                skip_latest_partitions=self.most - 1,
                lookback_partitions=self.most,
                begin_partition=DAYS[1],
                end_partition=DAYS[3],
                small_file_bytes=300 * MB,
                max_group_bytes=4 * MB,
                max_groups=30 if plain else choose.choice((1, 3, 30)),
            )
            return self.world.clustering(settings, only=only)
        settings_of_compaction = CompactionSettings(
            strategy=self.strategy,
            day_partitions=self.most,
            target_io_mb=512_000 if plain else choose.choice((5, 200, 512_000)),
        )
        return self.world.compaction(settings_of_compaction, only=only)


EVENT_WEIGHTS = {
    "write": 6,
    "begin": 4,
    "complete": 4,
    "fail": 1,
    "plan": 6,
    "plan_as_java": 1,
    "plan_elsewhere": 2,
    "execute": 5,
    "execute_elsewhere": 1,
    "give_up": 2,
    "give_up_elsewhere": 1,
    "complete_in_the_middle_of_planning": 2,
    "undo": 1,
    "restore": 0.4,
    "archive": 1.5,
}


def as_set(work: tuple[Work, ...]) -> set[tuple[object, ...]]:
    return {each.slices for each in work}


@pytest.mark.parametrize("kind", list(ServiceKind), ids=lambda kind: kind.value)
@pytest.mark.parametrize("first", range(0, HISTORIES_A_SERVICE, HISTORIES_A_TEST))
def test_incremental_plans_and_their_successors_cover_what_full_planning_covers(first: int, kind: ServiceKind) -> None:
    for seed in range(first, first + HISTORIES_A_TEST):
        History(seed, kind).run()


@pytest.mark.parametrize("kind", [ServiceKind.COMPACTION, ServiceKind.CLUSTERING], ids=lambda kind: kind.value)
@pytest.mark.parametrize("first", range(0, RANKED_HISTORIES, HISTORIES_A_TEST))
def test_filters_that_rank_partitions_choose_the_same_in_incremental_and_in_full_planning(
    first: int, kind: ServiceKind
) -> None:
    for seed in range(first, first + HISTORIES_A_TEST):
        RankedHistory(seed, kind).run()
