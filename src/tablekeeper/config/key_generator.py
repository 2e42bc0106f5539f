"""Settings of timestamp-based partition fields, read from a table's properties."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["TimestampPartitionSettings", "timestamp_partition_settings"]


@dataclass(frozen=True, slots=True)
class TimestampPartitionSettings:
    """How the field is read and how its partition path is written, in Java's date patterns."""

    timestamp_type: str
    output_format: str
    input_formats: tuple[str, ...]
    scalar_unit: str
    input_timezone: str | None
    output_timezone: str | None


def timestamp_partition_settings(properties: Mapping[str, str]) -> TimestampPartitionSettings:
    """From the keys that Hudi's timestamp-based key generator has, with its defaults."""
    prefix = "hoodie.keygen.timebased."
    inputs = properties.get(prefix + "input.dateformat", "")
    separator = properties.get(prefix + "input.dateformat.list.delimiter.regex", ",")
    both = properties.get(prefix + "timezone") or None
    formats = tuple(part.strip() for part in re.split(separator, inputs) if part.strip())
    return TimestampPartitionSettings(
        timestamp_type=properties.get(prefix + "timestamp.type", "DATE_STRING" if formats else "EPOCHMILLISECONDS"),
        output_format=properties.get(prefix + "output.dateformat", "yyyy-MM-dd"),
        input_formats=formats,
        scalar_unit=properties.get(prefix + "timestamp.scalar.time.unit", "SECONDS"),
        input_timezone=both or properties.get(prefix + "input.timezone") or None,
        output_timezone=both or properties.get(prefix + "output.timezone") or None,
    )
