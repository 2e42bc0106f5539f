"""What Java Hudi is told when it runs a service for us, so that it respects the table and its other writers.

By itself Java runs as a single writer: it takes no lock, rolls back what others are writing, upgrades the table, and
takes away indexes of the metadata table that its settings do not name. None of that may happen to a table that the
service looks after, so that these settings go over everything that a policy or request says.
"""

from __future__ import annotations

from collections.abc import Mapping

from tablekeeper.config.concurrency_settings import LockProvider, LockSettings
from tablekeeper.config.table_config import TableConfig
from tablekeeper.errors import UnsupportedFeatureError

__all__ = ["LOCK_PROVIDER", "java_settings"]

LOCK_PROVIDER = "hoodie.write.lock.provider"
_PROVIDERS = "org.apache.hudi.client.transaction.lock."
_MODE = "hoodie.write.concurrency.mode"
_NON_BLOCKING = "NON_BLOCKING_CONCURRENCY_CONTROL"
_STATISTICS = {"column_stats": "column.stats", "partition_stats": "partition.stats"}
# Without Java's embedded timeline server, compactions of tables with an expression index fail (Hudi 1.2).
_USUAL = {"hoodie.embed.timeline.server": "true", "hoodie.write.markers.type": "DIRECT"}
_ALWAYS = {
    "hoodie.clean.failed.writes.policy": "LAZY",
    "hoodie.cleaner.policy.failed.writes": "LAZY",
    "hoodie.metadata.auto.delete.partitions": "false",
    "hoodie.write.auto.upgrade": "false",
    # It would hand the plan back to us.
    "hoodie.table.service.manager.enabled": "false",
    # One operation is one service.
    "hoodie.clean.automatic": "false",
    "hoodie.archive.automatic": "false",
    "hoodie.compact.inline": "false",
    "hoodie.compact.schedule.inline": "false",
    "hoodie.log.compaction.inline": "false",
    "hoodie.clustering.inline": "false",
    "hoodie.clustering.async.enabled": "false",
    "hoodie.datasource.compaction.async.enable": "false",
    # The service has decided that it is due.
    "hoodie.compact.inline.max.delta.commits": "1",
    "hoodie.clustering.inline.max.commits": "1",
    "hoodie.clustering.async.max.commits": "1",
}


def java_settings(
    config: TableConfig, options: Mapping[str, str], *, locks: LockSettings, on_object_store: bool
) -> dict[str, str]:
    """All settings of the Java write client. `options` are those of the table, policy and request."""
    mode = _NON_BLOCKING if options.get(_MODE, "").upper() == _NON_BLOCKING else "OPTIMISTIC_CONCURRENCY_CONTROL"
    indexes = {
        f"hoodie.metadata.index.{name}.enable": str(partition in config.metadata_partitions).lower()
        for partition, name in _STATISTICS.items()
    }
    return {
        **_USUAL,
        **{name: value for name, value in options.items() if name.startswith("hoodie.")},
        **_ALWAYS,
        **indexes,
        **_lock_settings(config, locks, on_object_store=on_object_store),
        _MODE: mode,
        "hoodie.metadata.enable": str(bool(config.metadata_partitions)).lower(),
        "hoodie.write.table.version": str(config.version),
    }


def _lock_settings(config: TableConfig, locks: LockSettings, *, on_object_store: bool) -> dict[str, str]:
    """The lock that we take ourselves, as Java spells it. Where it lies is among the options, or the same default."""
    usual = LockProvider.STORAGE_BASED if on_object_store else LockProvider.FILE_SYSTEM
    provider = locks.known_provider() or usual
    if provider is LockProvider.IN_PROCESS:
        raise UnsupportedFeatureError(
            f"{LOCK_PROVIDER}: {provider.value} protects the writers of one process, and Java runs in another. Give "
            "all writers of the table a lock that they can share."
        )
    chosen = {LOCK_PROVIDER: _PROVIDERS + provider.value}
    if provider is LockProvider.ZOOKEEPER and locks.zookeeper.lock_key is None:
        chosen["hoodie.write.lock.zookeeper.lock_key"] = config.name
    return chosen
