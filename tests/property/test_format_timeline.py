"""Timeline codecs: what is encoded is decoded again, and damage is reported, never worse."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tablekeeper.errors import CorruptTableError
from tablekeeper.format import plans
from tablekeeper.format.commit_metadata import decode_commit_metadata, encode_commit_metadata
from tablekeeper.format.data_files import decode_partition_metadata, encode_partition_metadata
from tablekeeper.format.history import (
    ArchivedInstant,
    HistoryFile,
    decode_history_file,
    decode_manifest,
    encode_history_file,
    encode_manifest,
)
from tablekeeper.format.properties import decode_properties, encode_properties
from tablekeeper.model import (
    Action,
    CommitMetadata,
    CompletionTime,
    FileGroupId,
    Instant,
    Operation,
    RequestedTime,
    State,
    Strategy,
    WriteStat,
)
from tablekeeper.timeline.timeline import decode_instant_name, encode_instant_name
from tests.support.damage import DAMAGED_FILE, assert_survives_damage, damage, truncations

__all__: list[str] = []

TEXT = st.text(max_size=12)
NAME = st.text(min_size=1, max_size=12)
MAYBE_NAME = st.none() | NAME
INT64 = st.integers(-(2**63) + 1, 2**63 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)
COUNT = st.integers(0, 2**63 - 1)
VERSION = st.none() | st.integers(0, 9)
TEXTS = st.lists(TEXT, max_size=3).map(tuple)
EXTRA = st.dictionaries(TEXT, TEXT, max_size=3)
METRICS = st.dictionaries(TEXT, st.floats(allow_nan=False), max_size=3)
SIZES = st.dictionaries(TEXT, INT64, max_size=3)
GROUP = st.builds(FileGroupId, TEXT, TEXT)
DIGITS = st.integers(0, 10**17 - 1).map(lambda value: f"{value:017d}")
OPERATIONS = st.sampled_from(Operation)


def _tuples(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(strategy, max_size=3).map(tuple)


STATS = st.builds(
    WriteStat,
    group=GROUP,
    path=TEXT,
    size=COUNT,
    writes=COUNT,
    inserts=COUNT,
    updates=COUNT,
    deletes=COUNT,
    errors=COUNT,
    previous_commit=NAME,
    previous_base_file=MAYBE_NAME,
    min_event_time=st.none() | INT64,
    max_event_time=st.none() | INT64,
)
LOG_STATS = st.builds(
    WriteStat, group=GROUP, path=TEXT, size=COUNT, log_version=st.integers(0, 2**31 - 1), base_file=MAYBE_NAME
)
COMMITS = st.builds(
    CommitMetadata,
    operation=OPERATIONS,
    stats=_tuples(STATS | LOG_STATS),
    extra=EXTRA,
    compacted=st.booleans(),
    replaced=st.none() | st.dictionaries(TEXT, TEXTS, max_size=3),
)
STRATEGIES = st.none() | st.builds(Strategy, class_name=st.none() | TEXT, params=EXTRA, version=VERSION)
COMPACTIONS = st.builds(
    plans.CompactionPlan,
    operations=_tuples(
        st.builds(
            plans.CompactionOperation,
            group=GROUP,
            base_instant=TEXT,
            base_file=MAYBE_NAME,
            log_files=TEXTS,
            metrics=METRICS,
            bootstrap_file=MAYBE_NAME,
        )
    ),
    extra_metadata=EXTRA,
    missing_schedule_partitions=TEXTS,
    strategy=STRATEGIES,
    preserve_metadata=st.booleans(),
    version=VERSION,
)
SLICES = st.builds(
    plans.SliceInfo, group=GROUP, base_file=MAYBE_NAME, log_files=TEXTS, bootstrap_file=MAYBE_NAME, version=VERSION
)
CLUSTERING_GROUPS = st.builds(
    plans.ClusteringGroup,
    slices=_tuples(SLICES),
    output_file_groups=INT32,
    metrics=METRICS,
    extra_metadata=EXTRA,
    version=VERSION,
)
CLUSTERINGS = st.builds(
    plans.ClusteringPlan,
    input_groups=_tuples(CLUSTERING_GROUPS),
    strategy=STRATEGIES,
    extra_metadata=EXTRA,
    missing_schedule_partitions=TEXTS,
    preserve_metadata=st.booleans(),
    version=VERSION,
)
REPLACEMENTS = st.builds(
    plans.RequestedReplaceMetadata,
    operation=st.none() | OPERATIONS,
    clustering_plan=st.none() | CLUSTERINGS,
    extra_metadata=EXTRA,
    version=VERSION,
)
CLEAN_PLANS = st.builds(
    plans.CleanPlan,
    policy=TEXT,
    files=st.dictionaries(TEXT, _tuples(st.builds(plans.CleanFile, TEXT, st.booleans())), max_size=3),
    partitions_to_delete=TEXTS,
    earliest_instant_to_retain=st.none() | st.builds(plans.RetainedInstant, TEXT, TEXT, TEXT),
    last_completed_commit=TEXT,
    extra_metadata=EXTRA,
    version=VERSION,
)
CLEANED = st.builds(plans.CleanedPartition, TEXT, TEXT, TEXTS, TEXTS, TEXTS, st.booleans())
CLEANS = st.builds(
    plans.CleanMetadata,
    started_at=TEXT,
    duration_ms=INT64,
    files_deleted=INT32,
    earliest_commit_to_retain=TEXT,
    last_completed_commit=TEXT,
    partitions=st.dictionaries(TEXT, CLEANED, max_size=3),
    bootstrap_partitions=st.dictionaries(TEXT, CLEANED, max_size=3),
    extra_metadata=EXTRA,
    version=VERSION,
)
INFOS = st.builds(plans.InstantInfo, TEXT, TEXT)
ROLLBACK_PLANS = st.builds(
    plans.RollbackPlan,
    instant=st.none() | INFOS,
    requests=_tuples(st.builds(plans.RollbackRequest, TEXT, TEXTS, TEXT, TEXT, SIZES)),
    version=VERSION,
)
ROLLBACKS = st.builds(
    plans.RollbackMetadata,
    started_at=TEXT,
    duration_ms=INT64,
    files_deleted=INT32,
    commits=TEXTS,
    partitions=st.dictionaries(
        TEXT, st.builds(plans.RolledBackPartition, TEXT, TEXTS, TEXTS, SIZES, SIZES), max_size=3
    ),
    instants=_tuples(INFOS),
    version=VERSION,
)
SAVEPOINTS = st.builds(
    plans.SavepointMetadata, TEXT, INT64, TEXT, st.dictionaries(TEXT, TEXTS, max_size=3), version=VERSION
)
RESTORE_PLANS = st.builds(plans.RestorePlan, _tuples(INFOS), st.none() | TEXT, VERSION)
RESTORES = st.builds(
    plans.RestoreMetadata,
    started_at=TEXT,
    duration_ms=INT64,
    commits=TEXTS,
    rollbacks=st.dictionaries(TEXT, _tuples(ROLLBACKS), max_size=2),
    instants=_tuples(INFOS),
    version=VERSION,
)
PENDING = st.builds(
    Instant,
    st.builds(RequestedTime, DIGITS),
    st.sampled_from(Action),
    st.sampled_from((State.REQUESTED, State.INFLIGHT)),
)
FINAL_ACTIONS = st.sampled_from([action for action in Action if action.completed_as is action])
COMPLETED = st.builds(
    Instant,
    st.builds(RequestedTime, DIGITS),
    FINAL_ACTIONS,
    st.just(State.COMPLETED),
    st.none() | st.builds(CompletionTime, DIGITS),
)
ARCHIVED = st.builds(ArchivedInstant, COMPLETED, st.none() | st.binary(max_size=20), st.none() | st.binary(max_size=20))

CODECS: dict[str, tuple[st.SearchStrategy[Any], Callable[[Any], bytes], Callable[..., Any]]] = {
    "commit metadata": (COMMITS, encode_commit_metadata, decode_commit_metadata),
    "compaction": (COMPACTIONS, plans.encode_compaction_plan, plans.decode_compaction_plan),
    "replacement": (
        REPLACEMENTS,
        plans.encode_requested_replace_metadata,
        plans.decode_requested_replace_metadata,
    ),
    "clean plan": (CLEAN_PLANS, plans.encode_clean_plan, plans.decode_clean_plan),
    "clean": (CLEANS, plans.encode_clean_metadata, plans.decode_clean_metadata),
    "rollback plan": (ROLLBACK_PLANS, plans.encode_rollback_plan, plans.decode_rollback_plan),
    "rollback": (ROLLBACKS, plans.encode_rollback_metadata, plans.decode_rollback_metadata),
    "savepoint": (SAVEPOINTS, plans.encode_savepoint_metadata, plans.decode_savepoint_metadata),
    "restore plan": (RESTORE_PLANS, plans.encode_restore_plan, plans.decode_restore_plan),
    "restore": (RESTORES, plans.encode_restore_metadata, plans.decode_restore_metadata),
    "properties": (st.dictionaries(TEXT, TEXT, max_size=4), encode_properties, decode_properties),
    "partition metadata": (
        st.fixed_dictionaries({"commit_time": TEXT, "depth": st.integers(0, 99)}),
        lambda value: encode_partition_metadata(**value),
        lambda data, *, file: {
            "commit_time": decode_partition_metadata(data, file=file).commit_time,
            "depth": decode_partition_metadata(data, file=file).depth,
        },
    ),
    "manifest": (st.lists(st.builds(HistoryFile, TEXT, COUNT), max_size=3), encode_manifest, decode_manifest),
}
BY_NAME = pytest.mark.parametrize("codec", CODECS)


def _by_partition(metadata: CommitMetadata) -> CommitMetadata:
    """The same metadata with its stats in the order in which they are stored: grouped by partition."""
    order = list(dict.fromkeys(stat.group.partition for stat in metadata.stats))
    stats = sorted(metadata.stats, key=lambda stat: order.index(stat.group.partition))
    return CommitMetadata(metadata.operation, tuple(stats), metadata.extra, metadata.compacted, metadata.replaced)


@BY_NAME
@given(data=st.data())
def test_what_is_encoded_is_decoded_again(codec: str, data: st.DataObject) -> None:
    strategy, encode, decode = CODECS[codec]
    value = data.draw(strategy)
    expected = _by_partition(value) if isinstance(value, CommitMetadata) else value
    assert decode(encode(value), file="f") == expected


@BY_NAME
@settings(max_examples=200)
@given(data=st.data())
def test_damage_is_reported_with_the_file_name_and_never_worse(codec: str, data: st.DataObject) -> None:
    strategy, encode, decode = CODECS[codec]
    damaged = data.draw(damage(encode(data.draw(strategy))))
    assert_survives_damage(partial(decode, file=DAMAGED_FILE), damaged)


@pytest.mark.parametrize(
    "codec", [name for name in CODECS if name not in ("properties", "partition metadata", "manifest")]
)
@settings(max_examples=3)
@given(data=st.data())
def test_no_truncated_record_is_taken_for_a_whole_one(codec: str, data: st.DataObject) -> None:
    strategy, encode, decode = CODECS[codec]
    for cut in truncations(encode(data.draw(strategy)), most=100):
        if cut:
            with pytest.raises(CorruptTableError, match=DAMAGED_FILE):
                decode(cut, file=DAMAGED_FILE)


@settings(max_examples=200)
@given(st.data())
def test_damaged_json_of_version_6_is_reported_with_the_file_name(data: st.DataObject) -> None:
    whole = (
        b'{"partitionToWriteStats":{"p":[{"fileId":"f","path":"p/f","numWrites":3,"logVersion":1}]},'
        b'"compacted":false,"extraMetadata":{"schema":"{}"},"operationType":"UPSERT","partitionToReplaceFileIds":{"p":["g"]}}'
    )
    damaged = data.draw(damage(whole))
    assert_survives_damage(partial(decode_commit_metadata, file=DAMAGED_FILE), damaged)


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_survived_by_every_decoder(content: bytes) -> None:
    for _, _, decode in CODECS.values():
        assert_survives_damage(partial(decode, file=DAMAGED_FILE), content)
    assert_survives_damage(partial(decode_history_file, file=DAMAGED_FILE), content)


@given(PENDING | COMPLETED)
def test_layout_2_names_are_read_back(instant: Instant) -> None:
    assert decode_instant_name(encode_instant_name(instant)) == instant


@given(PENDING | COMPLETED)
def test_layout_1_names_are_read_back_without_completion_times(instant: Instant) -> None:
    decoded = decode_instant_name(encode_instant_name(instant, layout=1), layout=1)
    assert decoded is not None
    assert (decoded.requested_at, decoded.state) == (instant.requested_at, instant.state)
    if instant.is_completed:
        assert decoded.completed_at == CompletionTime(instant.requested_at.value)


@given(st.text(alphabet="0123456789._abcdefilmnoqrstuv", max_size=40))
def test_a_name_is_an_instant_only_if_it_is_the_name_of_that_instant(name: str) -> None:
    instant = decode_instant_name(name)
    if instant is not None:
        alternative = f"{instant.requested_at}.commit.inflight"
        assert name in (encode_instant_name(instant), alternative)


@settings(max_examples=50)
@given(st.lists(ARCHIVED, max_size=4))
def test_history_files_are_read_back(archived: list[ArchivedInstant]) -> None:
    decoded = decode_history_file(encode_history_file(archived), file="f")
    expected = sorted(archived, key=lambda item: item.instant.requested_at)
    assert decoded == expected
    assert Counter(map(repr, decoded)) == Counter(map(repr, archived))


HISTORY = encode_history_file(
    [
        ArchivedInstant(
            Instant(RequestedTime(f"{n:017d}"), Action.COMMIT, State.COMPLETED, CompletionTime(f"{n + 7:017d}")),
            b"metadata" * n,
            b"plan" if n % 2 else None,
        )
        for n in range(4)
    ]
)


@settings(max_examples=400)
@given(damage(HISTORY))
def test_a_damaged_history_file_gives_no_wrong_instant(damaged: bytes) -> None:
    whole = decode_history_file(HISTORY, file="f")

    def decode(content: bytes) -> None:
        decoded = decode_history_file(content, file=DAMAGED_FILE)
        if decoded != whole:
            pytest.fail("damage went unnoticed")

    assert_survives_damage(decode, damaged)
