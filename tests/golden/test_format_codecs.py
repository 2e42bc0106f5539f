"""Every timeline file, properties file, footer and bloom filter in the golden tables decodes."""

from __future__ import annotations

import io
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pyarrow as pa
import pyarrow.parquet as pq

from tablekeeper.format import plans
from tablekeeper.format.avro_container import decode_any_record, encode_record
from tablekeeper.format.bloom import might_contain
from tablekeeper.format.commit_metadata import decode_commit_metadata, encode_commit_metadata
from tablekeeper.format.data_files import (
    PARTITION_METADATA_NAME,
    decode_base_name,
    decode_footer,
    decode_partition_metadata,
)
from tablekeeper.format.properties import decode_properties, encode_properties, verify_checksum
from tablekeeper.model import Action, State
from tablekeeper.timeline.timeline import decode_instant_name, encode_instant_name

__all__: list[str] = []

TABLES = Path(__file__).parent / "tables"


def _files() -> Iterator[tuple[PurePosixPath, bytes]]:
    for archive in sorted(TABLES.glob("*.zip")):
        with zipfile.ZipFile(archive) as content:
            for name in content.namelist():
                if not name.endswith("/"):
                    yield PurePosixPath(name), content.read(name)


def _timeline() -> Iterator[tuple[PurePosixPath, bytes, int]]:
    for path, data in _files():
        if path.parent.name == "timeline":
            yield path, data, 2
        elif path.parent.name in (".hoodie", "metadata") and path.name != "hoodie.properties":
            yield path, data, 1


def test_every_timeline_name_is_read_and_written_again() -> None:
    layouts = Counter[int]()
    for path, _, layout in _timeline():
        instant = decode_instant_name(path.name, layout=layout)
        if instant is not None:
            assert encode_instant_name(instant, layout=layout) == path.name
            layouts[layout] += 1
    assert layouts[2] > 400
    assert layouts[1] > 20


def test_every_timeline_file_is_read_and_survives_being_written_again() -> None:
    records = Counter[str]()
    for path, data, layout in _timeline():
        instant = decode_instant_name(path.name, layout=layout)
        if instant is None or not data:
            continue
        if instant.action.completed_as.writes_data and instant.state is not State.REQUESTED:
            metadata = decode_commit_metadata(data, file=str(path))
            assert decode_commit_metadata(encode_commit_metadata(metadata), file=str(path)) == metadata
            records["commit metadata"] += 1
        else:
            name, record = decode_any_record(data, file=str(path))
            assert decode_any_record(encode_record(name, record), file=str(path)) == (name, record)
            records[name] += 1
    assert records["commit metadata"] > 200
    assert {"HoodieCompactionPlan", "HoodieRequestedReplaceMetadata", "HoodieIndexPlan"} <= set(records)


def test_every_plan_is_read_and_survives_being_written_again() -> None:
    operations = groups = 0
    for path, data, layout in _timeline():
        instant = decode_instant_name(path.name, layout=layout)
        if instant is None or instant.state is not State.REQUESTED or not data:
            continue
        if instant.action is Action.COMPACTION:
            plan = plans.decode_compaction_plan(data, file=str(path))
            assert plans.decode_compaction_plan(plans.encode_compaction_plan(plan), file=str(path)) == plan
            assert all("TOTAL_LOG_FILES_SIZE" in operation.metrics for operation in plan.operations)
            operations += len(plan.operations)
        if instant.action in (Action.CLUSTERING, Action.REPLACE_COMMIT):
            replacement = plans.decode_requested_replace_metadata(data, file=str(path))
            encoded = plans.encode_requested_replace_metadata(replacement)
            assert plans.decode_requested_replace_metadata(encoded, file=str(path)) == replacement
            groups += len(replacement.clustering_plan.input_groups) if replacement.clustering_plan else 0
    assert operations > 10
    assert groups > 0


def test_completed_commits_name_files_that_are_there() -> None:
    names = {path.name for path, _ in _files()}
    checked = 0
    for path, data, layout in _timeline():
        instant = decode_instant_name(path.name, layout=layout)
        if instant and instant.is_completed and instant.action in (Action.COMMIT, Action.DELTA_COMMIT):
            for stat in decode_commit_metadata(data, file=str(path)).stats:
                checked += stat.file_name in names
                assert stat.path.startswith(stat.group.partition)
                assert stat.is_log == (".log." in stat.file_name)
                assert stat.group.file_id in stat.file_name
    assert checked > 200


def test_every_properties_file_has_a_right_checksum_and_is_written_again() -> None:
    count = 0
    for path, data in _files():
        if path.name == "hoodie.properties":
            properties = decode_properties(data, file=str(path))
            assert decode_properties(encode_properties(properties), file=str(path)) == properties
            table, database = properties["hoodie.table.name"], properties.get("hoodie.database.name", "")
            verify_checksum(properties.get("hoodie.table.checksum"), database=database, table=table, file=str(path))
            count += "hoodie.table.checksum" in properties
    assert count > 29


def test_every_partition_is_as_deep_as_it_says() -> None:
    depths = Counter[int]()
    for path, data in _files():
        if path.name == PARTITION_METADATA_NAME and ".hoodie" not in path.parts:
            metadata = decode_partition_metadata(data, file=str(path))
            assert metadata.depth == len(path.parts) - 2
            depths[metadata.depth] += 1
    assert depths[0] > 0
    assert depths[1] > 0


def test_every_bloom_filter_knows_the_keys_of_its_file_and_few_others() -> None:
    kinds = Counter[str]()
    others = pa.array([f"no such key {number}" for number in range(500)])
    for path, data in _files():
        if path.suffix != ".parquet":
            continue
        assert decode_base_name(path.name) is not None
        file = pq.ParquetFile(io.BytesIO(data))
        footer = decode_footer(file.metadata.metadata or {}, file=str(path))
        if footer.bloom is not None and footer.bloom_type is not None:
            keys = file.read(columns=["_hoodie_record_key"]).column(0).combine_chunks()
            assert might_contain(footer.bloom, keys, bloom_type=footer.bloom_type, file=str(path)).all()
            assert not might_contain(footer.bloom, others, file=str(path)).any()
            texts = keys.to_pylist()
            if texts:
                assert (footer.min_key, footer.max_key) == (min(texts), max(texts))
            kinds[footer.bloom_type] += 1
    assert kinds["DYNAMIC_V0"] > 100
