"""The clustering service: its plans as Java writes and reads them, what it refuses, and what a rewrite brings back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest

from tablekeeper.config.clustering_order import ClusteringOrder, Layout, OutputLayout
from tablekeeper.config.write_settings import IndexKind
from tablekeeper.engine.local import LocalEngine
from tablekeeper.errors import CorruptTableError, InvalidRequestError, UnsupportedFeatureError
from tablekeeper.format.plans import (
    ClusteringGroup,
    ClusteringPlan,
    RequestedReplaceMetadata,
    SliceInfo,
    decode_requested_replace_metadata,
    encode_requested_replace_metadata,
)
from tablekeeper.model import (
    BaseFile,
    FileGroupId,
    FileSlice,
    LogFile,
    Plan,
    PlanFlags,
    RequestedTime,
    ServiceKind,
    Strategy,
    Work,
)
from tablekeeper.runtime import SYSTEM_RUNTIME
from tablekeeper.services.clustering.service import Clustering
from tablekeeper.services.plans.foreign_plans import refuse_foreign_plan
from tablekeeper.services.plans.service import Attempt, Draft, PartitionChoice, Service
from tablekeeper.snapshot.snapshot import Snapshot, load_snapshot
from tablekeeper.storage import Storage
from tablekeeper.storage.handle import StorageHandle
from tablekeeper.storage.protocol import StorageSpec
from tablekeeper.timeline import load_timeline
from tablekeeper.timeline.plans import decode_plan, encode_plan
from tablekeeper.timeline.properties_file import load_table_config
from tests.support.table_builder import TRIPS, TableBuilder, trips
from tests.support.write_context import make_context

__all__: list[str] = []

INSTANT = "20990101000000000"
EXECUTION = "org.apache.hudi.client.clustering.run.strategy."
SORT_COLUMNS = "hoodie.clustering.plan.strategy.sort.columns"


@dataclass(frozen=True)
class AllTogether:
    """A strategy that rewrites all slices of a partition together."""

    class_name: str = f"{EXECUTION}SparkSortAndSizeExecutionStrategy"
    params: Mapping[str, str] = field(default_factory=dict)
    name: str = "AllTogether"
    scope: str = ""
    is_incremental: bool = True
    ranks_partitions: bool = False

    def choose_partitions(self, partitions: Sequence[str]) -> PartitionChoice:
        return PartitionChoice(tuple(partitions))

    def plan(self, slices: Sequence[FileSlice], *, planned: frozenset[FileGroupId]) -> Draft:
        free = [each for each in slices if each.group not in planned]
        partitions = sorted({each.group.partition for each in free})
        return Draft(tuple(Work(tuple(each for each in free if each.group.partition == p)) for p in partitions))


def _service(layout: OutputLayout | None = None, *, by_bucket: bool = False) -> Service:
    chosen = layout or OutputLayout(ClusteringOrder(("fare",)))
    return Clustering(AllTogether(), chosen, by_bucket=by_bucket)


def _encoded(service: Service, plan: Plan) -> bytes:
    planned = replace(plan, strategy=service.plan_strategy)
    return encode_plan(planned, service.kind, spec=StorageSpec("file:///lake/t%20x"))


def _decoded(content: bytes, *, file: str = "x") -> Plan:
    return decode_plan(content, ServiceKind.CLUSTERING, file=file)


def _slice(partition: str, file_id: str, *, logs: int = 0, base: bool = True) -> FileSlice:
    group, instant = FileGroupId(partition, file_id), RequestedTime("20240101000000000")
    found = BaseFile(group, instant, "0-1-2", f"{file_id}_0-1-2_{instant}.parquet", 3 << 20) if base else None
    names = [f".{file_id}_2024010200000000{n}.log.1_3-4-5" for n in range(logs)]
    deltas = [
        LogFile(group, RequestedTime(f"2024010200000000{n}"), 1, "3-4-5", name, 0) for n, name in enumerate(names)
    ]
    return FileSlice(group, instant if base else deltas[0].instant, found, tuple(deltas))


@pytest.fixture
def builder() -> Iterator[TableBuilder]:
    made = TableBuilder()
    yield made
    made.forget()


def _attempt(storage: Storage) -> tuple[Attempt, Snapshot]:
    config = load_table_config(storage)
    timeline = load_timeline(storage, config)
    store = StorageHandle(storage)
    attempt = Attempt(LocalEngine(threads=2), make_context(store=store, instant=INSTANT), config)
    return attempt, load_snapshot(storage, config, timeline, runtime=SYSTEM_RUNTIME)


def test_a_plan_reads_back_as_it_was_made() -> None:
    work = (
        Work((_slice("p=1", "a-0", logs=2), _slice("p=1", "b-0")), outputs=3),
        Work((_slice("", "c-0", logs=1, base=False),)),
    )
    plan = Plan(work, PlanFlags(mutable=True, cancellable=True, scheduled_by="us"), missing=("p=2",))
    service = _service()

    read = _decoded(_encoded(service, plan))

    assert [each.outputs for each in read.work] == [3, 1]
    assert read.file_groups == plan.file_groups
    assert [[(s.base and s.base.name, [log.name for log in s.logs]) for s in each.slices] for each in read.work] == [
        [(s.base and s.base.name, [log.name for log in s.logs]) for s in each.slices] for each in work
    ]
    assert [s.base_instant for each in read.work for s in each.slices] == [
        s.base_instant for each in work for s in each.slices
    ]
    assert read.flags == plan.flags
    assert read.missing == plan.missing
    assert read.preserves_metadata
    assert read.size == plan.size


def test_a_plan_names_files_by_full_path_and_the_order_as_java_reads_it() -> None:
    layout = OutputLayout(ClusteringOrder(("fare", "ts"), Layout.ZORDER), target_file_bytes=7)
    content = _encoded(_service(layout), Plan((Work((_slice("p=1", "a-0", logs=1),)),)))

    plan = decode_requested_replace_metadata(content, file="x").clustering_plan

    assert plan is not None
    assert plan.strategy is not None
    assert plan.strategy.class_name == f"{EXECUTION}SparkSortAndSizeExecutionStrategy"
    assert plan.strategy.params[SORT_COLUMNS] == "fare,ts"
    [info] = plan.input_groups[0].slices
    assert info.base_file == "file:///lake/t x/p=1/a-0_0-1-2_20240101000000000.parquet"
    assert info.log_files == ("file:///lake/t x/p=1/.a-0_20240102000000000.log.1_3-4-5",)
    assert plan.input_groups[0].metrics["TOTAL_LOG_FILES"] == 1.0


def test_what_a_plan_says_about_the_layout_counts_and_what_it_does_not_say_is_ours() -> None:
    ours = OutputLayout(ClusteringOrder(("mine",), Layout.HILBERT), target_file_bytes=99)
    single = f"{EXECUTION}SparkSingleFileSortExecutionStrategy"

    of_java = ours.as_planned(class_name=single, params={SORT_COLUMNS: "a, b"}, file="x")
    of_ours = OutputLayout().as_planned(class_name=ours.class_name, params=ours.to_params(), file="x")

    assert of_java == OutputLayout(ClusteringOrder(("a", "b"), Layout.HILBERT), target_file_bytes=99, single_file=True)
    assert of_ours == ours
    assert ours.as_planned(class_name=None, params={}, file="x").order.columns == ()


@pytest.mark.parametrize(
    "params",
    [
        {"hoodie.layout.optimize.strategy": "SPIRAL"},
        {"hoodie.clustering.plan.strategy.target.file.max.bytes": "many"},
    ],
)
def test_a_layout_that_makes_no_sense_is_reported_with_the_plan(params: dict[str, str]) -> None:
    with pytest.raises(CorruptTableError, match="the plan") as raised:
        OutputLayout().as_planned(class_name=None, params=params, file="the plan")
    assert raised.value.file == "the plan"


@pytest.mark.parametrize(
    ("name", "layout"), [("sort", Layout.LINEAR), ("z-order", Layout.ZORDER), ("Hilbert", Layout.HILBERT)]
)
def test_layouts_are_known_by_the_names_that_people_use(name: str, layout: Layout) -> None:
    assert Layout.named(name) is layout
    with pytest.raises(InvalidRequestError, match="spiral"):
        Layout.named("spiral")


def test_a_plan_that_resizes_buckets_is_left_to_java() -> None:
    info = SliceInfo(FileGroupId("p", "a-0"), "file:/t/p/a-0_0-1-2_20240101000000000.parquet")
    strategy = Strategy(f"{EXECUTION}SparkConsistentBucketClusteringExecutionStrategy")
    plan = ClusteringPlan((ClusteringGroup((info,)),), strategy)
    content = encode_requested_replace_metadata(RequestedReplaceMetadata(clustering_plan=plan))
    with pytest.raises(UnsupportedFeatureError, match="buckets"):
        refuse_foreign_plan(_decoded(content), file="x")


@pytest.mark.parametrize(
    ("group", "message"),
    [
        (ClusteringGroup(()), "without slices"),
        (ClusteringGroup((SliceInfo(FileGroupId("p", "a-0"), None),)), "names no files"),
        (ClusteringGroup((SliceInfo(FileGroupId("p", "a-0"), "b-0_0-1-2_20240101000000000.parquet"),)), "no data file"),
        (ClusteringGroup((SliceInfo(FileGroupId("p", "a-0"), None, ("x.log",)),)), "no data file"),
    ],
)
def test_a_damaged_plan_is_reported_with_its_file(group: ClusteringGroup, message: str) -> None:
    content = encode_requested_replace_metadata(RequestedReplaceMetadata(clustering_plan=ClusteringPlan((group,))))
    with pytest.raises(CorruptTableError, match=message) as raised:
        _decoded(content, file="some plan")
    assert raised.value.file == "some plan"


def test_a_requested_file_without_a_plan_is_damaged() -> None:
    with pytest.raises(CorruptTableError, match="without a plan"):
        _decoded(b"")


def test_a_group_over_several_partitions_is_left_to_java() -> None:
    infos = [SliceInfo(FileGroupId(p, "a-0"), "a-0_0-1-2_20240101000000000.parquet") for p in ("p", "q")]
    plan = ClusteringPlan((ClusteringGroup(tuple(infos)),))
    content = encode_requested_replace_metadata(RequestedReplaceMetadata(clustering_plan=plan))
    with pytest.raises(UnsupportedFeatureError, match="several partitions"):
        refuse_foreign_plan(_decoded(content), file="x")


def test_a_rewrite_replaces_all_groups_that_it_read_by_partition(builder: TableBuilder) -> None:
    table = builder.create(options={"hoodie.parquet.small.file.limit": 0})
    table.insert(trips(("1", "sf", 1, 3.0), ("2", "la", 1, 2.0)))
    table.insert(trips(("3", "sf", 1, 1.0)))
    storage = builder.storage(table)
    attempt, snapshot = _attempt(storage)
    service = _service()
    draft = service.plan(snapshot, planned=frozenset())
    plan = _decoded(_encoded(service, Plan(draft.work)))

    rewritten = service.rewrite(attempt, plan)

    old = {p: sorted(s.group.file_id for s in snapshot.latest if s.group.partition == p) for p in ("la", "sf")}
    assert rewritten.replaced is not None
    assert {p: list(ids) for p, ids in rewritten.replaced.items()} == old
    assert {(file.stat.group.partition, file.stat.writes) for file in rewritten.files} == {("la", 1), ("sf", 2)}
    assert not {file.stat.group.file_id for file in rewritten.files} & {i for ids in old.values() for i in ids}


def test_a_rewrite_by_a_column_that_is_not_there_is_refused_before_anything_is_written(builder: TableBuilder) -> None:
    table = builder.create()
    table.insert(trips(("1", "sf", 1, 3.0)))
    storage = builder.storage(table)
    attempt, snapshot = _attempt(storage)
    service = _service(OutputLayout(ClusteringOrder(("fair",))))
    plan = _decoded(_encoded(service, Plan(service.plan(snapshot, planned=frozenset()).work)))
    before = [file.path for file in storage.walk("")]
    with pytest.raises(InvalidRequestError, match="did you mean fare"):
        service.rewrite(attempt, plan)
    assert [file.path for file in storage.walk("")] == before


def test_a_plan_that_could_not_be_carried_out_is_not_made(builder: TableBuilder) -> None:
    table = builder.create()
    table.insert(trips(("1", "sf", 1, 3.0)))
    _, snapshot = _attempt(builder.storage(table))
    layout = OutputLayout(ClusteringOrder(("fair",)))
    service = Clustering(AllTogether(), layout, schema=TRIPS)
    with pytest.raises(InvalidRequestError, match="did you mean fare"):
        service.plan(snapshot, planned=frozenset())


def test_tables_with_a_bucket_index_are_not_clustered(builder: TableBuilder) -> None:
    table = builder.create(options={"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": 2})
    table.insert(trips(("1", "sf", 1, 3.0), ("2", "sf", 1, 2.0), ("3", "sf", 1, 2.0)))
    storage = builder.storage(table)
    attempt, snapshot = _attempt(storage)
    plan = Plan((Work(snapshot.latest),))
    told = replace(attempt.context, settings=replace(attempt.context.settings, index=IndexKind.BUCKET, buckets=2))

    for service in (_service(by_bucket=True), _service()):
        with pytest.raises(UnsupportedFeatureError, match="bucket"):
            service.plan(snapshot, planned=frozenset())
    with pytest.raises(UnsupportedFeatureError, match="bucket"):
        _service().rewrite(replace(attempt, context=told), plan)
    # One who was not told finds it out by the names of the file groups.
    with pytest.raises(InvalidRequestError, match="buckets"):
        _service().rewrite(attempt, plan)
