"""What the bloom filters of a metadata table say, and what the footers say: the same, if they were kept in step."""

from __future__ import annotations

import io

import pyarrow.parquet as pq

from tablekeeper.format.data_files import decode_base_name
from tablekeeper.format.metadata_keys import bloom_filter_key
from tablekeeper.format.metadata_records import BloomFilterRecord
from tablekeeper.metadata_table.layout import BLOOM_FILTERS
from tablekeeper.metadata_table.listing import open_metadata_table
from tablekeeper.model import join_path
from tablekeeper.runtime import SYSTEM_RUNTIME
from tablekeeper.storage import Storage
from tablekeeper.timeline import load_timeline
from tablekeeper.timeline.properties_file import load_table_config
from tests.support.metadata_content import load_content

__all__ = ["indexed_filters", "refuse_wrong_bloom_filters", "stored_filters"]


def indexed_filters(storage: Storage) -> dict[str, tuple[str, bytes]]:
    """Kind and content (Base64) of each filter that is there, by key."""
    found: dict[str, tuple[str, bytes]] = {}
    for (partition, _), record in load_content(storage).items():
        if partition != BLOOM_FILTERS:
            continue
        assert isinstance(record, BloomFilterRecord)
        assert record.instant
        found[record.key] = (record.kind, record.content)
    return found


def stored_filters(storage: Storage) -> dict[str, tuple[str, bytes]]:
    """Those in the footers of all base files that the metadata table lists."""
    config = load_table_config(storage)
    listed = open_metadata_table(storage, config, load_timeline(storage, config), runtime=SYSTEM_RUNTIME)
    assert listed is not None
    found: dict[str, tuple[str, bytes]] = {}
    for partition, files in listed.files(listed.partitions()).items():
        for name, _ in files:
            if decode_base_name(name) is not None:
                footer = pq.read_metadata(io.BytesIO(storage.read(join_path(partition, name)))).metadata
                content = footer[b"org.apache.hudi.bloomfilter"]
                key = bloom_filter_key(partition=partition, file_name=name)
                found[key] = (footer[b"hoodie_bloom_filter_type_code"].decode(), content)
    return found


def refuse_wrong_bloom_filters(storage: Storage) -> int:
    """The index has just the filters of the files that are there; how many they are."""
    stored = stored_filters(storage)
    assert indexed_filters(storage) == stored
    return len(stored)
