"""Bloom filters in the metadata table, kept in step by Java and by us in turns.

Java's own look-ups by them fail on Java 17 (Kryo cannot write a lock that its task holds), so that Java's reader of the
metadata table is asked for each filter instead, and the filter for keys.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tablekeeper as tk
from tablekeeper.runtime import SYSTEM_RUNTIME
from tablekeeper.storage import open_storage
from tests.support.bloom_filter_content import refuse_wrong_bloom_filters
from tests.support.java_hudi import JavaTable

__all__: list[str] = []

SCHEMA = pa.schema([("id", pa.string()), ("city", pa.string()), ("ts", pa.int64())])
CITIES = ("a", "b")
FILTERS = {
    "hoodie.metadata.enable": "true",
    "hoodie.metadata.index.column.stats.enable": "false",
    "hoodie.metadata.index.bloom.filter.file.group.count": "2",
    "hoodie.metadata.index.bloom.filter.enable": "true",
    "hoodie.metadata.compact.max.delta.commits": "4",
    "hoodie.index.type": "BLOOM",
}


def rows(keys: dict[str, str], ts: int) -> pa.Table:
    return pa.Table.from_pylist([{"id": key, "city": city, "ts": ts} for key, city in keys.items()], schema=SCHEMA)


class JavaFilters:
    """The filters of the metadata table as Java's reader has them now."""

    def __init__(self, spark: Any, path: str) -> None:
        jvm = spark._jvm
        hudi = jvm.org.apache.hudi
        conf = hudi.hadoop.fs.HadoopFSUtils.getStorageConf(spark._jsc.hadoopConfiguration())
        client = hudi.common.table.HoodieTableMetaClient.builder().setConf(conf).setBasePath(path).build()
        engine = hudi.common.engine.HoodieLocalEngineContext(conf)
        config = hudi.common.config.HoodieMetadataConfig.newBuilder().enable(True).build()
        self._table = hudi.metadata.HoodieBackedTableMetadata(engine, client.getStorage(), config, path)

    def might_contain(self, partition: str, file_name: str, key: str) -> bool:
        found = self._table.getBloomFilter(partition, file_name, "bloom_filters")
        assert found.isPresent(), f"Java finds no filter of {file_name}"
        return bool(found.get().mightContain(key))


def keys_by_file(table: tk.Table) -> dict[tuple[str, str], list[str]]:
    """The keys of each base file of the newest slices, by partition path and name."""
    bases = [each.base for each in table.files() if each.base is not None]
    folder = Path(table.path.removeprefix("file://"))
    return {
        (base.group.partition, base.name): pq.read_table(folder / base.path, columns=["_hoodie_record_key"])
        .column(0)
        .to_pylist()
        for base in bases
    }


@pytest.mark.parametrize(("table_type", "seed"), [("cow", 1), ("mor", 2)])
def test_java_and_we_take_turns_on_the_bloom_filters(table_type: str, seed: int, spark: Any, tmp_path: Path) -> None:
    chance = random.Random(seed)
    options = JavaTable.options_for(
        name="t", key=["id"], partition_by=["city"], ordering="ts", table_type=table_type, extra=FILTERS
    )
    java = JavaTable(spark, str(tmp_path / "t"), options)
    java.write(rows({f"k{n}": CITIES[n % 2] for n in range(30)}, 1), "upsert")
    ours = tk.Table.open(java.path, engine="local")
    assert "bloom_filters" in ours.config.metadata_partitions
    storage = open_storage(java.path, runtime=SYSTEM_RUNTIME)
    homes = {f"k{n}": CITIES[n % 2] for n in range(45)}
    for ts in range(2, 6):
        written = rows({key: homes[key] for key in chance.sample(sorted(homes), 8)}, ts)
        gone = rows({key: homes[key] for key in chance.sample(sorted(homes), 2)}, ts)
        if ts % 2:
            java.write(written, "upsert")
            ours.delete(gone)
        else:
            ours.upsert(written)
            java.write(gone, "delete")
        if ts == 3:
            (ours.cluster if table_type == "cow" else ours.compact)()
        if ts == 4:
            ours.clean(options={"hoodie.clean.commits.retained": "1"})
        assert refuse_wrong_bloom_filters(storage) >= 2
        read = {row["id"] for row in ours.read(columns=["id"]).to_pylist()}
        assert read == {row["id"] for row in java.read().select(["id"]).to_pylist()}
    assert "bloom_filters" in ours.config.metadata_partitions
    filters = JavaFilters(spark, java.path)
    by_file = keys_by_file(ours)
    assert by_file
    for (partition, name), keys in by_file.items():
        assert all(filters.might_contain(partition, name, key) for key in keys)
        assert not any(filters.might_contain(partition, name, f"nobody{n}") for n in range(5))
