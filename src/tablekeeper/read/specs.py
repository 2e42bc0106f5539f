"""From a table's configuration to the specs that the record kernels take."""

from __future__ import annotations

from typing import get_args

from tablekeeper.config.key_generator import timestamp_partition_settings
from tablekeeper.config.table_config import MergeMode, PartitionKind, TableConfig
from tablekeeper.errors import UnsupportedFeatureError
from tablekeeper.record.keys import KeySpec
from tablekeeper.record.merge import MergeRule
from tablekeeper.record.partition_paths import PartitionField, PartitionSpec, TimestampSpec, TimestampType

__all__ = ["key_spec", "merge_rule", "partition_spec"]


def key_spec(config: TableConfig) -> KeySpec:
    """How the record key of a row is made."""
    return KeySpec(config.key_fields, config.composite_key)


def merge_rule(config: TableConfig) -> MergeRule:
    """Which version of a row wins. Tables with mergers of their own are refused."""
    if config.merge_mode is MergeMode.CUSTOM:
        raise UnsupportedFeatureError(
            f"table {config.name} merges rows with a custom payload or merger class, which only Java can run. "
            "Read it with mode='read_optimized', or compact it with Java first."
        )
    if config.special_merging is not None:
        raise UnsupportedFeatureError(
            f"table {config.name} merges rows in a way that only Java knows ({config.special_merging}). "
            "Read it with mode='read_optimized', or compact it with Java first."
        )
    return MergeRule(config.merge_mode, config.ordering_fields)


def partition_spec(config: TableConfig) -> PartitionSpec:
    """How the partition path of a row is made."""
    fields = tuple(_partition_field(config, name, kind) for name, kind in config.partition_fields)
    return PartitionSpec(
        fields,
        hive_style=config.hive_style,
        url_encode=config.url_encode,
        slash_separated_dates=config.slash_separated_dates,
    )


def _partition_field(config: TableConfig, name: str, kind: PartitionKind) -> PartitionField:
    if kind is PartitionKind.SIMPLE:
        return PartitionField(name)
    settings = timestamp_partition_settings(config.properties)
    spec = TimestampSpec(
        timestamp_type=_timestamp_type(settings.timestamp_type),
        output_format=settings.output_format,
        input_formats=settings.input_formats,
        scalar_unit=settings.scalar_unit,
        input_timezone=settings.input_timezone,
        output_timezone=settings.output_timezone,
    )
    return PartitionField(name, "timestamp", spec)


def _timestamp_type(name: str) -> TimestampType:
    known: tuple[TimestampType, ...] = get_args(TimestampType)
    for each in known:
        if each == name.upper():
            return each
    raise UnsupportedFeatureError(f"timestamp type {name!r} of the partition field is not one of {', '.join(known)}")
