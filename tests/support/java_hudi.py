"""Java Hudi 1.2.0 and hudi-rs as judges: small functions to write, read and maintain a table through them.

Needs PySpark 3.5 with the Hudi bundle in the local Maven repository, and the `hudi` package. Nothing here
imports tablekeeper: what these functions answer is the opinion of other programs. Every write runs as a
single writer with inline services off, unless the caller says otherwise.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hudi import HudiReadOptions, HudiTableBuilder
from pyspark.sql.pandas.types import to_arrow_schema

__all__ = ["BUNDLE_VERSION", "JavaTable", "bundle_jar", "hudi_settings", "rust_read"]

BUNDLE_VERSION = "1.2.0"
_ARTIFACT = "hudi-spark3.5-bundle_2.12"
_KEYGEN = "org.apache.hudi.keygen."
_QUIET = {
    "hoodie.compact.inline": "false",
    "hoodie.compact.schedule.inline": "false",
    "hoodie.clustering.inline": "false",
    "hoodie.clean.automatic": "false",
    "hoodie.archive.automatic": "false",
    "hoodie.embed.timeline.server": "false",
    "hoodie.write.markers.type": "DIRECT",
    "hoodie.upsert.shuffle.parallelism": "2",
    "hoodie.insert.shuffle.parallelism": "2",
    "hoodie.bulkinsert.shuffle.parallelism": "2",
    "hoodie.delete.shuffle.parallelism": "2",
}


def bundle_jar() -> Path:
    """The bundle in the local Maven repository; a missing one is an error that says how to fetch it."""
    default = (
        Path.home() / f".m2/repository/org/apache/hudi/{_ARTIFACT}/{BUNDLE_VERSION}/{_ARTIFACT}-{BUNDLE_VERSION}.jar"
    )
    jar = Path(os.environ.get("HUDI_BUNDLE") or default)
    if not jar.is_file():
        raise FileNotFoundError(
            f"{jar} is missing. Fetch it with: mvn -B -q org.apache.maven.plugins:maven-dependency-plugin:3.6.1:get "
            f"-Dartifact=org.apache.hudi:{_ARTIFACT}:{BUNDLE_VERSION} -Dtransitive=false"
        )
    return jar


def hudi_settings() -> dict[str, str]:
    """Session settings that put the bundle to work; the JVM's zone is UTC, because timelines use it."""
    return {
        "spark.jars": str(bundle_jar()),
        "spark.serializer": "org.apache.spark.serializer.KryoSerializer",
        "spark.kryo.registrator": "org.apache.spark.HoodieSparkKryoRegistrar",
        "spark.sql.extensions": "org.apache.spark.sql.hudi.HoodieSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.hudi.catalog.HoodieCatalog",
        "spark.driver.defaultJavaOptions": "-Duser.timezone=UTC",
        "spark.default.parallelism": "2",
    }


@dataclass(frozen=True)
class JavaTable:
    """One table as Java Hudi sees it. `options` are the writer options that describe the table."""

    spark: Any
    path: str
    options: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def options_for(
        *,
        name: str,
        key: Sequence[str],
        partition_by: Sequence[str],
        ordering: str | None,
        table_type: str,
        extra: Mapping[str, str] | None = None,
    ) -> dict[str, str]:
        """Writer options for a table of the given shape; the key generator follows from key and partitions."""
        generator = "NonpartitionedKeyGenerator"
        if partition_by:
            generator = "SimpleKeyGenerator" if len(key) == len(partition_by) == 1 else "ComplexKeyGenerator"
        options = {
            "hoodie.table.name": name,
            "hoodie.datasource.write.table.type": {"cow": "COPY_ON_WRITE", "mor": "MERGE_ON_READ"}[table_type],
            "hoodie.datasource.write.recordkey.field": ",".join(key),
            "hoodie.datasource.write.partitionpath.field": ",".join(partition_by),
            "hoodie.datasource.write.keygenerator.class": _KEYGEN + generator,
        }
        if ordering:
            options["hoodie.table.ordering.fields"] = ordering
            options["hoodie.datasource.write.precombine.field"] = ordering
        return {**options, **(extra or {})}

    def write(self, rows: Any, operation: str, *, mode: str = "append", **options: str) -> None:
        """Run one write operation. `rows` is an Arrow table or a DataFrame; `__` in option names stands for a dot."""
        frame = self.frame(rows) if isinstance(rows, pa.Table) else rows
        extra = {key.replace("__", "."): value for key, value in options.items()}
        settings = {**_QUIET, **self.options, "hoodie.datasource.write.operation": operation, **extra}
        frame.write.format("hudi").options(**settings).mode(mode).save(self.path)

    def delete_partitions(self, paths: Sequence[str], like: pa.Table) -> None:
        """Drop the partitions with these paths. `like` gives the schema; its rows are not looked at."""
        self.write(like, "delete_partition", hoodie__datasource__write__partitions__to__delete=",".join(paths))

    def frame(self, rows: pa.Table) -> Any:
        """A Spark DataFrame with exactly the rows and types of an Arrow table."""
        side = Path(self.path + ".input")
        side.mkdir(parents=True, exist_ok=True)
        file = side / f"{len(list(side.iterdir()))}.parquet"
        pq.write_table(rows, file, store_schema=False)
        return self.spark.read.parquet(str(file))

    def read(self, **options: str) -> pa.Table:
        """Snapshot query by default; `__` in option names stands for a dot."""
        return self.collect(self.scan(**options))

    def scan(self, **options: str) -> Any:
        """The DataFrame behind `read`, for filters and projections."""
        settings = {key: value for key, value in self.options.items() if key.startswith("hoodie.metadata")}
        settings.update({key.replace("__", "."): value for key, value in options.items()})
        return self.spark.read.format("hudi").options(**settings).load(self.path)

    def read_optimized(self) -> pa.Table:
        """Base files only."""
        return self.read(hoodie__datasource__query__type="read_optimized")

    def read_as_of(self, instant: str) -> pa.Table:
        """The table as it was at a requested instant."""
        return self.read(as__of__instant=instant)

    def changes(self, *, since: str, until: str | None = None) -> pa.Table:
        """Incremental query: completion time after `since`, up to and with `until`."""
        bounds = {"hoodie.datasource.read.begin.instanttime": since}
        if until is not None:
            bounds["hoodie.datasource.read.end.instanttime"] = until
        options = {key.replace(".", "__"): value for key, value in bounds.items()}
        return self.read(hoodie__datasource__query__type="incremental", **options)

    def compact(self) -> int:
        """Schedule and run a compaction; the number of plans run."""
        self.schedule_compaction()
        return self.run_compaction()

    def schedule_compaction(self) -> None:
        """Put a compaction of every file group with logs on the timeline."""
        self._call("run_compaction", op="schedule", options=self._services())

    def run_compaction(self) -> int:
        """Run what is scheduled; the number of plans run."""
        return self._call("run_compaction", op="run", options=self._services())

    def cluster(self, *, order: str) -> int:
        """Cluster all partitions sorted by `order`; the number of plans run."""
        return self._call("run_clustering", order=order, options=self._clustering())

    def schedule_clustering(self, *, order: str) -> None:
        """Put a clustering of all partitions on the timeline."""
        self._call("run_clustering", op="schedule", order=order, options=self._clustering())

    def run_clustering(self, *, order: str) -> int:
        """Run what is scheduled; the number of plans run."""
        return self._call("run_clustering", op="execute", order=order, options=self._clustering())

    def execute_clustering(self) -> int:
        """Run what is scheduled in the order that the plans say; the number of plans run."""
        return self._call("run_clustering", op="execute", options=self._clustering())

    def clean(self, *, retain: int = 1, versions: int | None = None) -> int:
        """Clean down to the last `retain` commits, or to so many versions of a file; the number of cleans run."""
        kept = f"hoodie.clean.policy=KEEP_LATEST_COMMITS,hoodie.clean.commits.retained={retain}"
        if versions is not None:
            kept = f"hoodie.clean.policy=KEEP_LATEST_FILE_VERSIONS,hoodie.clean.fileversions.retained={versions}"
        options = f"{self._services()},{kept}"
        # This procedure knows tables by name only.
        name = f"cleaned_{zlib.crc32(self.path.encode()):08x}"
        self.spark.sql(f"create table if not exists {name} using hudi location '{self.path}'")
        done = self.spark.sql(f"call run_clean(table => '{name}', options => '{options}')").collect()
        self.spark.sql(f"drop table {name}")
        return len(done)

    def collect(self, frame: Any) -> pa.Table:
        """A DataFrame's rows as Arrow, without going through pandas."""
        batches = frame._collect_as_arrow()
        return pa.Table.from_batches(batches, schema=batches[0].schema if batches else to_arrow_schema(frame.schema))

    def _call(self, procedure: str, **arguments: str) -> int:
        listed = ", ".join(f"{name} => '{value}'" for name, value in {"path": self.path, **arguments}.items())
        return len(self.spark.sql(f"call {procedure}({listed})").collect())

    def _clustering(self) -> str:
        return self._services() + ",hoodie.clustering.plan.strategy.small.file.limit=629145600"

    def _services(self) -> str:
        chosen = {key: value for key, value in self.options.items() if key.startswith("hoodie.metadata")}
        chosen |= {"hoodie.clean.automatic": "false", "hoodie.archive.automatic": "false"}
        chosen["hoodie.compact.inline.max.delta.commits"] = "1"
        return ",".join(f"{key}={value}" for key, value in chosen.items())


def rust_read(path: str, *, filters: Sequence[tuple[str, str, str]] = ()) -> pa.Table:
    """Snapshot of the table as hudi-rs reads it."""
    table = HudiTableBuilder.from_base_uri(path).build()
    batches = [pa.record_batch(batch) for batch in _rust_batches(table, filters)]
    if not batches:
        return pa.table({})
    return pa.Table.from_batches(batches)


def _rust_batches(table: Any, filters: Sequence[tuple[str, str, str]]) -> list[Any]:
    if not filters:
        return list(table.read())
    return list(table.read(HudiReadOptions(filters=list(filters))))
