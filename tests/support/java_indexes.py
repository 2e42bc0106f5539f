"""Indexes of the metadata table as Java begins them in a table: what only Java builds, and we keep in step."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tablekeeper.config.table_properties import METADATA_PARTITIONS_KEY
from tablekeeper.errors import NotFoundError
from tablekeeper.format.index_shard import encode_empty_log
from tablekeeper.metadata_table.indexes import INDEX_DEFINITIONS_PATH
from tablekeeper.metadata_table.layout import METADATA_DIRECTORY
from tablekeeper.storage import Storage
from tablekeeper.timeline.properties_file import change_properties, load_table_config

__all__ = ["BLOOM_IDS", "begin_index", "define_index"]

BLOOM_IDS = ("bloom-filters-0000-0", "bloom-filters-0001-0")


def begin_index(
    storage: Storage, name: str, file_ids: Sequence[str], *, at: int, completed: str, bases: Mapping[str, bytes] = {}
) -> None:
    """Begin the index `name` with these file groups, and base files for some of them.

    `at` numbers the first moments of all time, at which Java has the commits that begin partitions; `completed` is when
    this one completes.
    """
    instant = f"{at:017d}"
    for file_id in file_ids:
        storage.put(f"{METADATA_DIRECTORY}/{name}/.{file_id}_{instant}.log.1_0-0-0", encode_empty_log(instant=instant))
    for file_id, data in bases.items():
        storage.put(f"{METADATA_DIRECTORY}/{name}/{file_id}_0-0-0_{instant}.hfile", data)
    directory = f"{METADATA_DIRECTORY}/.hoodie/timeline"
    for file in (f"{instant}.deltacommit.requested", f"{instant}.deltacommit.inflight"):
        storage.put(f"{directory}/{file}", b"")
    storage.put(f"{directory}/{instant}_{completed}.deltacommit", b"")
    named = [*load_table_config(storage).metadata_partitions, name]
    change_properties(storage, {METADATA_PARTITIONS_KEY: ",".join(named)})


def define_index(storage: Storage, name: str, definition: Mapping[str, Any]) -> None:
    """Put the definition of an index beside the others."""
    try:
        content = json.loads(storage.read(INDEX_DEFINITIONS_PATH))
    except NotFoundError:
        content = {"indexDefinitions": {}}
    content["indexDefinitions"][name] = dict(definition)
    storage.put(INDEX_DEFINITIONS_PATH, json.dumps(content).encode())
