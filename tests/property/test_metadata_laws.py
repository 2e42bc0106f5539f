"""Laws of metadata records: encoding loses nothing, logs may be merged before the base file is, and into one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tablekeeper.errors import CorruptTableError, UnsupportedFeatureError
from tablekeeper.format.hfile import HFileReader
from tablekeeper.format.metadata_log import (
    MetadataFileGroup,
    decode_metadata_log,
    encode_metadata_base,
    encode_metadata_log,
)
from tablekeeper.format.metadata_records import (
    PARTITION_LIST_KEY,
    FileEntry,
    FileListRecord,
    MetadataRecord,
    PartitionListRecord,
    decode_metadata_record,
    encode_metadata_record,
    merge_metadata_records,
    metadata_schema_json,
)

__all__: list[str] = []

names = st.one_of(st.sampled_from("abc"), st.text(min_size=1, max_size=8).filter(lambda text: text != "."))
entries = st.one_of(st.builds(FileEntry, st.integers(1, 1 << 50)), st.just(FileEntry(0, is_deleted=True)))
file_lists = st.builds(FileListRecord, st.just("p"), st.dictionaries(names, entries, max_size=8))
# The record in which a file is added, and the one in which it is deleted (3: never).
lives = st.dictionaries(names, st.tuples(st.integers(0, 2), st.integers(0, 3)).filter(lambda life: life[0] < life[1]))
partition_lists = st.builds(PartitionListRecord, st.dictionaries(names, st.booleans(), max_size=8))


@given(st.one_of(file_lists, partition_lists))
def test_what_was_encoded_is_decoded(record: MetadataRecord) -> None:
    value = encode_metadata_record(record)
    assert decode_metadata_record(record.key, value, schema_json=metadata_schema_json(), file="f") == record


@given(lives)
def test_logs_may_be_merged_before_the_base_file_is(files: dict[str, tuple[int, int]]) -> None:
    """As long as a file comes once and goes once, which unique file names see to."""

    def record(number: int) -> FileListRecord:
        added = {name: FileEntry(1) for name, (start, _) in files.items() if start == number}
        deleted = {name: FileEntry(0, is_deleted=True) for name, (_, end) in files.items() if end == number}
        return FileListRecord("p", added | deleted)

    base, first, second = (record(number) for number in range(3))
    logs_first = merge_metadata_records(base, merge_metadata_records(first, second))
    in_order = merge_metadata_records(merge_metadata_records(base, first), second)
    assert isinstance(logs_first, FileListRecord)
    assert isinstance(in_order, FileListRecord)
    assert logs_first.live == in_order.live == {name: 1 for name, (_, end) in files.items() if end > 2}


logs = st.lists(st.tuples(st.dictionaries(st.sampled_from("pq"), file_lists, min_size=1), partition_lists), max_size=6)


@given(logs, st.integers(0, 6))
def test_a_compaction_after_any_log_changes_nothing_for_readers(
    written: list[tuple[dict[str, FileListRecord], PartitionListRecord]], compacted: int
) -> None:
    blocks = []
    for number, (lists, partitions) in enumerate(written):
        records: list[MetadataRecord] = [
            partitions,
            *(FileListRecord(name, each.files) for name, each in lists.items()),
        ]
        data = encode_metadata_log(records, instant=f"2024010200000000{number}")
        blocks += decode_metadata_log(data, file="log")
    entries = list(MetadataFileGroup(None, blocks[:compacted]).compacted())
    base = HFileReader(encode_metadata_base(entries), file="base")
    after = MetadataFileGroup(base, blocks[compacted:], base_file="base")
    assert live(after) == live(MetadataFileGroup(None, blocks))


def live(group: MetadataFileGroup) -> dict[str, object]:
    """What readers take from the records."""
    found = {r.key: r.live for r in group.records() if isinstance(r, PartitionListRecord | FileListRecord)}
    return {key: each for key, each in found.items() if each or key == PARTITION_LIST_KEY}


@given(st.one_of(file_lists, partition_lists), st.data())
def test_mangled_bytes_never_break_out_of_the_known_errors(record: MetadataRecord, data: st.DataObject) -> None:
    value = bytearray(encode_metadata_record(record))
    position = data.draw(st.integers(0, len(value) - 1))
    value[position] ^= data.draw(st.integers(1, 255))
    try:
        found = decode_metadata_record("p", bytes(value), schema_json=metadata_schema_json(), file="f")
    except (CorruptTableError, UnsupportedFeatureError):
        return
    assert found is not None
