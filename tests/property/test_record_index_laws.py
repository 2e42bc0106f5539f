"""The record index says what the last change of each key says, however the changes lie in base file and logs."""

from __future__ import annotations

from random import Random

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tablekeeper.errors import CorruptTableError, UnsupportedFeatureError
from tablekeeper.format.hfile import HFileReader
from tablekeeper.format.index_shard import encode_index_log
from tablekeeper.format.key_shards import KeyShards, partition_shard_id, shard_numbers
from tablekeeper.format.metadata_keys import metadata_file_group_index
from tablekeeper.format.metadata_log import decode_metadata_log, encode_metadata_base
from tablekeeper.format.metadata_records import metadata_schema_json
from tablekeeper.format.record_index import (
    RecordIndexShard,
    RecordLocation,
    decode_record_location,
    encode_record_location,
)

__all__: list[str] = []

UUIDS = st.uuids().map(str)
FILE_IDS = st.one_of(
    UUIDS,
    st.builds("{}-{}".format, UUIDS, st.integers(0, 10**9 - 1)),
    st.builds("{}-{}".format, UUIDS.map(str.upper), st.integers(0, 9)),
    st.text(min_size=1, max_size=50),
)
LOCATIONS = st.builds(RecordLocation, st.text(max_size=8), FILE_IDS, st.integers(-(1 << 63), (1 << 63) - 1))
KEYS = st.text(min_size=1, max_size=6)
CHANGES = st.lists(st.dictionaries(KEYS, st.none() | LOCATIONS, max_size=6), max_size=5)


def logs_of(changes: list[dict[str, RecordLocation | None]]) -> list[bytes]:
    logs = []
    for number, change in enumerate(changes):
        there = {key.encode(): encode_record_location(place) for key, place in change.items() if place is not None}
        gone = pa.array([key for key, place in change.items() if place is None], pa.string())
        logs.append(
            encode_index_log(sorted(there.items()), gone, index="record_index", instant=f"{number:017d}", created_ms=0)
        )
    return logs


@given(LOCATIONS)
def test_a_location_reads_back_as_it_was_written(location: RecordLocation) -> None:
    stored = encode_record_location(location)
    assert decode_record_location(stored, schema_json=metadata_schema_json(), file="f") == location


@given(st.lists(KEYS, max_size=8), st.integers(1, 9))
def test_a_key_lies_in_the_shard_in_which_java_looks_for_it(keys: list[str], shards: int) -> None:
    found = shard_numbers(pa.array(keys, pa.string()), shards=shards)
    assert found.tolist() == [metadata_file_group_index(key, groups=shards) for key in keys]


PATHS = st.text(st.characters(codec="utf-8", exclude_characters="."), max_size=8)


@given(st.dictionaries(PATHS, st.integers(1, 3), max_size=4), st.lists(KEYS, min_size=1, max_size=8), st.randoms())
def test_a_key_of_a_partition_lies_in_one_of_its_shards_in_whatever_order_files_are_listed(
    partitions: dict[str, int], keys: list[str], random: Random
) -> None:
    ids = [partition_shard_id(path, number) for path, count in partitions.items() for number in range(count)]
    random.shuffle(ids)
    shards = KeyShards(tuple(ids), by_partition=True)
    assert not any(set("/_=:") & set(name) for name in ids)
    for path, count in partitions.items():
        found = [ids[place] for place in shards.numbers(pa.array(keys, pa.string()), path)]
        assert found == [partition_shard_id(path, metadata_file_group_index(key, groups=count)) for key in keys]


def test_shards_of_a_partition_have_the_names_that_java_gives_them() -> None:
    assert partition_shard_id("san-jose", 1) == "record-index-san%2Djose-0001-0"
    assert partition_shard_id("a_b=1", 0) == "record-index-a%5Fb%3D1-0000-0"
    assert partition_shard_id("x/y", 0) == "record-index-x%2Fy-0000-0"
    assert partition_shard_id("new%p", 0) == "record-index-new%25p-0000-0"
    assert partition_shard_id("", 0) == "record-index--0000-0"
    with pytest.raises(UnsupportedFeatureError, match="dots"):
        partition_shard_id("v1.2", 0)


@pytest.mark.parametrize("name", ["record-index-0000-0", "record-index-a-b-0000-0", "files-0000-0"])
def test_a_file_group_that_is_no_shard_of_a_partition_is_damage(name: str) -> None:
    with pytest.raises(CorruptTableError, match="no shard"):
        KeyShards((name,), by_partition=True).of("a")


def test_a_missing_shard_of_a_partition_is_damage() -> None:
    with pytest.raises(CorruptTableError, match="only"):
        KeyShards((partition_shard_id("a", 0), partition_shard_id("a", 2)), by_partition=True).of("b")


@given(CHANGES, st.integers(0, 5), st.lists(KEYS, max_size=4))
def test_a_shard_says_what_the_last_change_of_each_key_says(
    changes: list[dict[str, RecordLocation | None]], compacted: int, others: list[str]
) -> None:
    expected: dict[str, RecordLocation] = {}
    for change in changes:
        for key, place in change.items():
            expected.pop(key, None)
            if place is not None:
                expected[key] = place
    logs = logs_of(changes)
    below = RecordIndexShard(None, [block for log in logs[:compacted] for block in decode_metadata_log(log, file="l")])
    base = HFileReader(encode_metadata_base(below.entries()), file="b") if compacted else None
    shard = RecordIndexShard(base, [b for log in logs[compacted:] for b in decode_metadata_log(log, file="l")])
    stored = {key.encode(): encode_record_location(place) for key, place in expected.items()}
    assert list(shard.entries()) == sorted(stored.items())
    assert shard.find([*expected, *others]) == expected


def test_an_entry_that_is_no_location_is_reported_with_the_file_name() -> None:
    with pytest.raises(CorruptTableError, match="some-file"):
        decode_record_location(b"\0\1\2", schema_json=metadata_schema_json(), file="some-file")
