"""Settings of Java jobs that are no options here, by what happens to them.

A Java job's settings should be usable as they are. Those that describe the table are compared with it (`CLAIMS`), those
with a second name count under the one there is (`RENAMED`), those that would change which rows are written or read, and
that are not supported, are refused unless they have their harmless value (`REFUSED`). The others steer Java's own
machinery and have no meaning here (`IDLE`): nothing that a reader sees depends on them. Names are listed one by one, so
that a misspelt one is still found; only families that belong to other programs go by their beginning.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = [
    "CLAIMS",
    "IDLE",
    "IDLE_FAMILIES",
    "READ_NAMES",
    "REFUSED",
    "RENAMED",
    "WRITE_NAMES",
    "Claim",
    "Refusal",
    "is_idle",
]


class Claim(enum.Enum):
    """What a setting says about its table; the value is what messages call it."""

    NAME = "name"
    DATABASE = "database"
    KEY = "key"
    PARTITION_BY = "partition_by"
    ORDERING = "ordering"
    TABLE_TYPE = "table type"
    MERGE_MODE = "merge mode"
    PAYLOAD = "merge mode (by payload class)"
    KEY_GENERATOR = "key generator"
    HIVE_STYLE = "hive-style partitioning"
    URL_ENCODE = "escaping of partition paths"
    DROPS_PARTITION_COLUMNS = "dropping of partition columns"
    META_COLUMNS = "meta columns"
    SLASHED_DATES = "slash-separated dates"
    CHANGE_LOG = "change log"
    TIME_ZONE = "zone of instant times"
    BASE_FORMAT = "base file format"
    VERSION = "table version"


CLAIMS: Mapping[str, Claim] = {
    "hoodie.table.name": Claim.NAME,
    "hoodie.datasource.write.table.name": Claim.NAME,
    "hoodie.database.name": Claim.DATABASE,
    "hoodie.datasource.write.recordkey.field": Claim.KEY,
    "hoodie.table.recordkey.fields": Claim.KEY,
    "hoodie.datasource.write.partitionpath.field": Claim.PARTITION_BY,
    "hoodie.table.partition.fields": Claim.PARTITION_BY,
    "hoodie.datasource.write.precombine.field": Claim.ORDERING,
    "hoodie.table.precombine.field": Claim.ORDERING,
    "hoodie.table.ordering.fields": Claim.ORDERING,
    "hoodie.payload.ordering.field": Claim.ORDERING,
    "hoodie.datasource.write.table.type": Claim.TABLE_TYPE,
    "hoodie.datasource.write.storage.type": Claim.TABLE_TYPE,
    "hoodie.table.type": Claim.TABLE_TYPE,
    "hoodie.record.merge.mode": Claim.MERGE_MODE,
    "hoodie.datasource.write.payload.class": Claim.PAYLOAD,
    "hoodie.compaction.payload.class": Claim.PAYLOAD,
    "hoodie.table.keygenerator.type": Claim.KEY_GENERATOR,
    "hoodie.table.keygenerator.class": Claim.KEY_GENERATOR,
    "hoodie.datasource.write.keygenerator.type": Claim.KEY_GENERATOR,
    "hoodie.datasource.write.keygenerator.class": Claim.KEY_GENERATOR,
    "hoodie.datasource.write.hive_style_partitioning": Claim.HIVE_STYLE,
    "hoodie.datasource.write.partitionpath.urlencode": Claim.URL_ENCODE,
    "hoodie.datasource.write.drop.partition.columns": Claim.DROPS_PARTITION_COLUMNS,
    "hoodie.populate.meta.fields": Claim.META_COLUMNS,
    "hoodie.datasource.write.slash.separated.date.partitioning": Claim.SLASHED_DATES,
    "hoodie.table.cdc.enabled": Claim.CHANGE_LOG,
    "hoodie.table.timeline.timezone": Claim.TIME_ZONE,
    "hoodie.table.base.file.format": Claim.BASE_FORMAT,
    "hoodie.base.file.format": Claim.BASE_FORMAT,
    "hoodie.table.version": Claim.VERSION,
    "hoodie.write.table.version": Claim.VERSION,
}
"""Settings that say what the table is: honoured when it is made, compared with it ever after."""

READ_NAMES: Mapping[str, str] = {"as.of.instant": "as_of", "hoodie.datasource.query.type": "mode"}
WRITE_NAMES: Mapping[str, str] = {"hoodie.datasource.write.operation": "operation"}
"""Java's names for options of Spark's own read and write syntax, where a call says what they say elsewhere."""

_TIMEBASED = (
    "timestamp.type",
    "input.dateformat",
    "input.dateformat.list.delimiter.regex",
    "output.dateformat",
    "input.timezone",
    "output.timezone",
    "timezone",
    "timestamp.scalar.time.unit",
)

RENAMED: Mapping[str, str] = {
    "hoodie.datasource.clustering.inline.enable": "hoodie.clustering.inline",
    "hoodie.datasource.clustering.async.enable": "hoodie.clustering.async.enabled",
    "hoodie.write.record.merge.mode": "hoodie.record.merge.mode",
    "hoodie.table.services.enable": "hoodie.table.services.enabled",
    **{f"hoodie.deltastreamer.keygen.timebased.{each}": f"hoodie.keygen.timebased.{each}" for each in _TIMEBASED},
}
"""Second names of options."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A setting that cannot be had here: values that ask for nothing, and what to do instead of the others."""

    harmless: tuple[str, ...]
    instead: str


_MERGERS = (
    "Only the merging of EVENT_TIME_ORDERING and COMMIT_TIME_ORDERING exists here: write with Java, or leave it out."
)
_DROPPED = "An insert looks for no keys here: use upsert, or drop the rows before."
_CLEANED = "A clean keeps no partition apart here."
_DELETED = "Mark deleted rows with a column _hoodie_is_deleted, or use delete."
_CHECKED = "Classes of Java do not run here: check the rows before they are written."
_KEYS = "Keys would be written in another form than here: write with Java, or leave it out."
_DEFAULT_MERGERS = (
    "org.apache.hudi.DefaultSparkRecordMerger",
    "org.apache.hudi.common.model.HoodieAvroRecordMerger",
    "org.apache.hudi.HoodieSparkRecordMerger",
)
_STRATEGIES = ("eeb8d96f-b1e4-49fd-bbf8-28ac514178e5", "ce9acb64-bde0-424c-9b91-f6ebba25356d")

REFUSED: Mapping[str, Refusal] = {
    "as.of.instant": Refusal((), "Give as_of to the read."),
    "hoodie.datasource.query.type": Refusal(("snapshot",), "Use read with a mode, or changes."),
    "hoodie.datasource.read.begin.instanttime": Refusal((), "Use changes with since, which excludes that commit."),
    "hoodie.datasource.read.end.instanttime": Refusal((), "Use changes with until, which includes that commit."),
    "hoodie.datasource.write.insert.drop.duplicates": Refusal(("false",), _DROPPED),
    "hoodie.datasource.insert.dup.policy": Refusal(("none",), _DROPPED),
    "hoodie.merge.allow.duplicate.on.inserts": Refusal(("true",), _DROPPED),
    "hoodie.datasource.write.partitions.to.delete": Refusal((), "Use delete_partitions."),
    "hoodie.static.overwrite.partition.paths": Refusal((), "Use insert_overwrite or delete_partitions."),
    "hoodie.datasource.write.schema.allow.auto.evolution.column.drop": Refusal(
        ("false",), "Columns are never dropped by a write."
    ),
    "hoodie.schema.on.read.enable": Refusal(("false",), "Columns are added and widened only, at the write."),
    "hoodie.allow.operation.metadata.field": Refusal(("false",), "Tables with that column are for Flink."),
    "hoodie.payload.delete.field": Refusal((), _DELETED),
    "hoodie.payload.delete.marker": Refusal((), _DELETED),
    "hoodie.write.partial.update.schema": Refusal((), "Give whole rows."),
    "hoodie.write.partial.update.unavailable.value": Refusal((), "Give whole rows."),
    "hoodie.table.partial.update.mode": Refusal(("none",), "Give whole rows."),
    "hoodie.datasource.write.record.merger.impls": Refusal(_DEFAULT_MERGERS, _MERGERS),
    "hoodie.write.record.merge.custom.implementation.classes": Refusal(_DEFAULT_MERGERS, _MERGERS),
    "hoodie.datasource.write.record.merger.strategy": Refusal(_STRATEGIES, _MERGERS),
    "hoodie.compaction.record.merger.strategy": Refusal(_STRATEGIES, _MERGERS),
    "hoodie.record.merge.strategy.id": Refusal(_STRATEGIES, _MERGERS),
    "hoodie.write.record.merge.strategy.id": Refusal(_STRATEGIES, _MERGERS),
    "hoodie.datasource.write.keygenerator.consistent.logical.timestamp.enabled": Refusal(("false",), _KEYS),
    "hoodie.write.complex.keygen.new.encoding": Refusal(("false",), _KEYS),
    "hoodie.keygen.datetime.parser.class": Refusal((), "Name the input formats of dates instead."),
    "hoodie.record.index.update.partition.path": Refusal(
        ("false",), "A row stays in the partition that has its key: delete it there and insert it anew."
    ),
    "hoodie.index.class": Refusal((), "Choose an index by hoodie.index.type."),
    "hoodie.bucket.index.partition.expressions": Refusal((), "All partitions have the same number of buckets here."),
    "hoodie.clean.partition.filter.regex": Refusal((), _CLEANED),
    "hoodie.clean.partition.filter.selected": Refusal((), _CLEANED),
    "hoodie.cleaner.partition.filter.regex": Refusal((), _CLEANED),
    "hoodie.cleaner.partition.filter.selected": Refusal((), _CLEANED),
    "hoodie.precommit.validators": Refusal((), _CHECKED),
    "hoodie.prewrite.validators": Refusal((), _CHECKED),
}
"""Settings that would change rows, and that are not supported."""

# The method that is called, and its arguments, say it here.
_SAID_BY_THE_CALL = """
    hoodie.bulkinsert.overwrite.operation.type hoodie.datasource.merge.type hoodie.datasource.overwrite.mode
    hoodie.datasource.query.incremental.format hoodie.datasource.streaming.startOffset
    hoodie.datasource.write.operation hoodie.datasource.write.streaming.checkpoint.identifier
    hoodie.datasource.write.streaming.disable.compaction hoodie.datasource.write.streaming.ignore.failed.batch
    hoodie.datasource.write.streaming.retry.count hoodie.datasource.write.streaming.retry.interval.ms
    hoodie.spark.sql.insert.into.operation hoodie.spark.sql.merge.into.partial.updates
    hoodie.spark.sql.optimized.writes.enable hoodie.sql.bulk.insert.enable hoodie.sql.insert.mode
    hoodie.write.num.retries.on.conflict.failures
"""
_PARALLELISM = """
    hoodie.archive.delete.parallelism hoodie.bloom.index.bucketized.checking.enable.dynamic.parallelism
    hoodie.bloom.index.parallelism hoodie.clustering.group.read.parallelism hoodie.clustering.max.parallelism
    hoodie.delete.shuffle.parallelism hoodie.file.listing.parallelism hoodie.finalize.write.parallelism
    hoodie.global.index.reconcile.parallelism hoodie.global.simple.index.parallelism
    hoodie.insert.shuffle.parallelism hoodie.markers.delete.parallelism
    hoodie.metadata.index.bloom.filter.parallelism hoodie.metadata.index.column.stats.parallelism
    hoodie.metadata.index.expression.parallelism hoodie.metadata.index.partition.stats.parallelism
    hoodie.metadata.index.secondary.parallelism hoodie.metadata.max.init.parallelism
    hoodie.metadata.record.preparation.parallelism hoodie.rollback.parallelism hoodie.simple.index.parallelism
    hoodie.upsert.shuffle.parallelism
"""
_INDEXES = """
    hoodie.bloom.index.bucketized.checking hoodie.bloom.index.fileid.key.sorting.enable
    hoodie.bloom.index.filter.dynamic.max.entries hoodie.bloom.index.filter.type
    hoodie.bloom.index.input.storage.level hoodie.bloom.index.keys.per.bucket hoodie.bloom.index.prune.by.ranges
    hoodie.bloom.index.use.caching hoodie.bloom.index.use.metadata
    hoodie.bloom.index.use.treebased.filter hoodie.bucket.index.max.num.buckets
    hoodie.bucket.index.merge.threshold hoodie.bucket.index.min.num.buckets
    hoodie.bucket.index.partition.rule.type hoodie.bucket.index.query.pruning
    hoodie.bucket.index.remote.partitioner.enable hoodie.bucket.index.split.threshold
    hoodie.expression.index.function hoodie.expression.index.range.metadata.storage.level
    hoodie.expression.index.type hoodie.file.index.cache.spillable.mem hoodie.file.index.cache.use.spillable.map
    hoodie.file.index.enable hoodie.index.bloom.num_entries hoodie.index.name
    hoodie.record.index.input.storage.level
    hoodie.record.index.use.caching hoodie.simple.index.input.storage.level
    hoodie.simple.index.use.caching
"""
_METADATA_TABLE = """
    hoodie.metadata.auto.delete.partitions hoodie.metadata.auto.initialize
    hoodie.metadata.bloom.filter.dynamic.max.entries hoodie.metadata.bloom.filter.enable
    hoodie.metadata.bloom.filter.fpp hoodie.metadata.bloom.filter.num.entries hoodie.metadata.bloom.filter.type
    hoodie.metadata.compact.max.delta.seconds hoodie.metadata.compact.trigger.strategy
    hoodie.metadata.derive.from.datatable.clean.policy hoodie.metadata.dir.filter.regex
    hoodie.metadata.fallback.enable hoodie.metadata.file.cache.max.size.mb hoodie.metadata.index.async
    hoodie.metadata.index.bloom.filter.column.list hoodie.metadata.index.bloom.filter.enable
    hoodie.metadata.index.bloom.filter.file.group.count hoodie.metadata.index.check.timeout.seconds
    hoodie.metadata.index.column.stats.column.list hoodie.metadata.index.column.stats.enable
    hoodie.metadata.index.column.stats.file.group.count
    hoodie.metadata.index.column.stats.inMemory.projection.threshold
    hoodie.metadata.index.column.stats.max.columns.to.index
    hoodie.metadata.index.column.stats.processing.mode.override hoodie.metadata.index.drop
    hoodie.metadata.index.expression.column hoodie.metadata.index.expression.enable
    hoodie.metadata.index.expression.file.group.count hoodie.metadata.index.expression.options
    hoodie.metadata.index.partition.stats.enable hoodie.metadata.index.partition.stats.file.group.count
    hoodie.metadata.index.secondary.column hoodie.metadata.index.secondary.enable
    hoodie.metadata.log.compaction.blocks.threshold hoodie.metadata.log.compaction.enable
    hoodie.metadata.max.deltacommits.when_pending hoodie.metadata.max.logfile.size
    hoodie.metadata.max.reader.buffer.size hoodie.metadata.max.reader.memory hoodie.metadata.metrics.enable
    hoodie.metadata.optimized.log.blocks.scan.enable
    hoodie.metadata.range.repartition.random.seed
    hoodie.metadata.range.repartition.sampling.fraction
    hoodie.metadata.range.repartition.target.records.per.partition
    hoodie.metadata.record.index.enable.validation.on.initialization
    hoodie.metadata.record.level.index.defer.init hoodie.metadata.repartition.default.partitions
    hoodie.metadata.repartition.min.partitions.threshold hoodie.metadata.spillable.map.path
    hoodie.metadata.streaming.write.datatable.write.statuses.coalesce.divisor
    hoodie.metadata.streaming.write.enabled hoodie.metadata.table.service.manager.actions
    hoodie.metadata.table.service.manager.enabled hoodie.metadata.write.concurrency.mode
    hoodie.metadata.write.fail.on.table.service.failures
"""
_FILES = """
    hoodie.avro.schema hoodie.avro.schema.validate hoodie.avro.write.support.class
    hoodie.bulkinsert.are.partitioner.records.sorted hoodie.bulkinsert.schema.ddl
    hoodie.bulkinsert.sort.suffix.record_key hoodie.bulkinsert.user.defined.partitioner.class
    hoodie.bulkinsert.user.defined.partitioner.sort.columns hoodie.copyonwrite.insert.auto.split
    hoodie.copyonwrite.insert.split.size hoodie.logfile.data.block.max.size hoodie.logfile.max.size
    hoodie.logfile.to.parquet.compression.ratio hoodie.parquet.bloom.filter.enabled
    hoodie.parquet.compression.ratio hoodie.parquet.dictionary.enabled hoodie.parquet.field_id.write.enabled
    hoodie.parquet.flink.rowdata.write.support.class hoodie.parquet.outputtimestamptype hoodie.parquet.page.size
    hoodie.parquet.spark.row.write.support.class hoodie.parquet.write.config.injector.class
    hoodie.parquet.write.utc-timezone.enabled hoodie.parquet.writelegacyformat.enabled
    hoodie.partition.metafile.use.base.format hoodie.record.size.estimation.threshold
    hoodie.record.size.estimator.average.metadata.size hoodie.record.size.estimator.class hoodie.storage.class
    hoodie.storage.layout.partitioner.class hoodie.storage.layout.type
"""
_SERVICES = """
    hoodie.archive.async hoodie.clean.allow.multiple hoodie.clean.delete.bootstrap.base.file
    hoodie.clean.multiple.enabled hoodie.clean.optimize.using.local.engine.context
    hoodie.cleaner.delete.bootstrap.base.file hoodie.clustering.enable.expirations
    hoodie.clustering.expiration.threshold.mins
    hoodie.clustering.fail.on.pending.ingestion.during.conflict.resolution
    hoodie.clustering.plan.generation.use.local.engine.context
    hoodie.clustering.plan.strategy.binary.copy.schema.evolution.enable
    hoodie.clustering.plan.strategy.earliest.commit.to.cluster
    hoodie.clustering.rollback.pending.replacecommit.on.conflict hoodie.compact.merge.handle.class
    hoodie.compaction.lazy.block.read hoodie.compaction.lazy.block.read.enabled hoodie.compaction.plan.generator
    hoodie.compaction.reverse.log.read hoodie.fail.job.on.duplicate.data.file.detection
    hoodie.fail.on.timeline.archiving hoodie.fail.writes.on.inline.table.service.exception
    hoodie.layout.optimize.build.curve.sample.size hoodie.layout.optimize.data.skipping.enable
    hoodie.layout.optimize.enable hoodie.prewrite.cleaner.policy hoodie.rollback.avoid.duplicate.plan
    hoodie.rollback.instant.backup.dir hoodie.rollback.instant.backup.enabled hoodie.rollback.using.markers
"""
_MACHINERY = """
    hoodie.allow.empty.commit hoodie.auto.adjust.lock.configs hoodie.cdc.file.group.iterator.memory.spill.bytes
    hoodie.client.init.callback.classes hoodie.common.diskmap.compression.enabled
    hoodie.common.spillable.diskmap.type hoodie.datasource.partition_extractor_class
    hoodie.datasource.write.commitmeta.key.prefix hoodie.datasource.write.reconcile.schema
    hoodie.datasource.write.row.writer.enable hoodie.datasource.write.secondarykey.column
    hoodie.enable.data.skipping hoodie.file.group.reader.enabled hoodie.fileid.prefix.provider.class
    hoodie.fs.atomic_creation.support hoodie.io.factory.class
    hoodie.markers.timeline_server_based.batch.interval_ms
    hoodie.markers.timeline_server_based.batch.num_threads hoodie.merge.data.validation.enabled
    hoodie.merge.small.file.group.candidates.limit hoodie.merge.use.record.positions
    hoodie.optimistic.consistency.guard.sleep_time_ms hoodie.payload.event.time.field
    hoodie.post.commit.failures.ignored hoodie.read.blob.inline.mode
    hoodie.read.timeline.holes.resolution.policy hoodie.release.resource.on.completion.enable
    hoodie.sensitive.config.keys hoodie.skip.default.partition.validation hoodie.spark.polaris.catalog.class
    hoodie.time.generator.max_expected_clock_skew_ms hoodie.time.generator.type hoodie.write.application.id
    hoodie.write.auto.upgrade hoodie.write.buffer.limit.bytes hoodie.write.buffer.record.cache.limit
    hoodie.write.buffer.record.sampling.rate hoodie.write.can.ignore.post.commit.failures
    hoodie.write.complex.keygen.validation.enable hoodie.write.concat.handle.class
    hoodie.write.concurrency.schema.conflict.resolution.enable
    hoodie.write.executor.disruptor.buffer.limit.bytes hoodie.write.executor.disruptor.wait.strategy
    hoodie.write.executor.type hoodie.write.ignore.failed hoodie.write.lock.heartbeat_interval_ms
    hoodie.write.markers.type hoodie.write.merge.handle.class hoodie.write.merge.handle.fallback
    hoodie.write.record.positions hoodie.write.rolling.metadata.keys
    hoodie.write.rolling.metadata.timeline.lookback.commits hoodie.write.schema
    hoodie.write.set.null.for.missing.columns hoodie.write.status.storage.level
    hoodie.write.tagged.record.storage.level hoodie.write.track.event.time.watermark hoodie.writestatus.class
"""

IDLE: Mapping[str, tuple[str, ...]] = {
    "The call says it: the method and its arguments": tuple(_SAID_BY_THE_CALL.split()),
    "The number of tasks follows the input and the engine": tuple(_PARALLELISM.split()),
    "How Java looks keys up and keeps its indexes": tuple(_INDEXES.split()),
    "How Java builds and reads the metadata table": tuple(_METADATA_TABLE.split()),
    "Details of Java's files": tuple(_FILES.split()),
    "Details of Java's table services": tuple(_SERVICES.split()),
    "Java's machinery": tuple(_MACHINERY.split()),
}
"""Settings without meaning here, by the reason."""

IDLE_FAMILIES: Mapping[str, str] = {
    "hoodie.bootstrap.": "bootstrapping",
    "hoodie.consistency.check.": "stores that list files late",
    "hoodie.datasource.hive_sync.": "the sync to a Hive catalog",
    "hoodie.datasource.meta.sync.": "the sync to catalogs",
    "hoodie.datasource.meta_sync.": "the sync to catalogs",
    "hoodie.datasource.read.": "Java's reads",
    "hoodie.embed.timeline.": "the timeline server",
    "hoodie.errortable.": "the error table",
    "hoodie.filesystem.": "Java's views of the file system",
    "hoodie.hfile.": "base files in HFile",
    "hoodie.lance.": "base files in Lance",
    "hoodie.memory.": "Java's memory",
    "hoodie.meta.sync.": "the sync to catalogs",
    "hoodie.meta_sync.": "the sync to catalogs",
    "hoodie.metaserver.": "the metaserver",
    "hoodie.metrics.": "Java's metrics",
    "hoodie.orc.": "base files in ORC",
    "hoodie.partition.ttl.": "the lifetime of partitions, which do not expire here",
    "hoodie.precommit.validators.": "validators before the commit",
    "hoodie.streamer.": "Java's ingestion program",
    "hoodie.deltastreamer.": "Java's ingestion program",
    "hoodie.table.service.manager.": "Java's client of the Table Management Service",
    "hoodie.write.commit.callback.": "calls after a commit",
    "hoodie.write.lock.dynamodb.": "a lock provider that is not here",
    "hoodie.write.lock.hivemetastore.": "a lock provider that is not here",
}
"""Beginnings of settings without meaning here, and what they are about."""

_IDLE_NAMES = frozenset(name for names in IDLE.values() for name in names)


def is_idle(name: str) -> bool:
    """Whether a Java setting has no meaning here."""
    return name in _IDLE_NAMES or name.startswith(tuple(IDLE_FAMILIES))
