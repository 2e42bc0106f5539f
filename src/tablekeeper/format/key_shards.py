"""How the keys of a record index are spread over its shards.

A record index of the whole table spreads all keys over all of its shards. One by partitions has shards of its own for
each partition of the table, made with the first commit that writes there, and spreads the keys of a partition over
these; their file ids say which partition that is, with what is special in file names escaped as Java does.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tablekeeper.errors import CorruptTableError, UnsupportedFeatureError
from tablekeeper.format.hashing import java_string_hash
from tablekeeper.format.record_index import RECORD_INDEX

__all__ = ["KeyShards", "partition_shard_id", "shard_id", "shard_numbers"]

_PREFIX = RECORD_INDEX.replace("_", "-")
_OF_PARTITION = re.compile(rf"{_PREFIX}-(?P<partition>[^-]*)-(?P<number>\d{{4,}})-0", re.ASCII)
# The control characters, too.
_ESCAPED = frozenset("\"#%'*/:=?\\\x7f{[]^_-")
_ESCAPE = re.compile("%([0-9A-Fa-f]{2})")


def shard_id(number: int) -> str:
    """The file id of a shard of an index of the whole table."""
    return f"{_PREFIX}-{number:04d}-0"


def partition_shard_id(partition: str, number: int) -> str:
    """The file id of a shard of one partition of the table."""
    if "." in partition:
        raise UnsupportedFeatureError(
            f"partition {partition}: a record index by partitions cannot name a file for it, because Hudi's names of "
            "log files have no dots in this place. Drop the index, or use one of the whole table."
        )
    escaped = "".join(f"%{ord(c):02X}" if c in _ESCAPED or c < " " else c for c in partition)
    return f"{_PREFIX}-{escaped}-{number:04d}-0"


def shard_numbers(keys: pa.Array, *, shards: int) -> npt.NDArray[np.int64]:
    """The number of each key among so many shards."""
    # Java's abs leaves the smallest int negative, and its remainder keeps the sign; the outer abs corrects that. In 64
    # bits there is no such int.
    return np.asarray(np.abs(java_string_hash(keys).astype(np.int64)) % shards)


@dataclass(frozen=True)
class KeyShards:
    """The shards of a record index: their file ids, the number of a shard being its place among these."""

    file_ids: tuple[str, ...]
    by_partition: bool = False

    @cached_property
    def _of_partition(self) -> Mapping[str, npt.NDArray[np.int64]]:
        found: dict[str, dict[int, int]] = defaultdict(dict)
        for place, file_id in enumerate(self.file_ids):
            match = _OF_PARTITION.fullmatch(file_id)
            if match is None:
                raise CorruptTableError(file=file_id, reason="it is no shard of a record index by partitions")
            partition = _ESCAPE.sub(lambda escaped: chr(int(escaped[1], 16)), match["partition"])
            found[partition][int(match["number"])] = place
        for partition, places in found.items():
            if sorted(places) != list(range(len(places))):
                raise CorruptTableError(
                    file=partition_shard_id(partition, 0),
                    reason=f"of the shards of partition {partition!r} only {sorted(places)} are there",
                )
        return {
            partition: np.array([places[number] for number in range(len(places))])
            for partition, places in found.items()
        }

    def of(self, partition: str) -> npt.NDArray[np.int64]:
        """The numbers of the shards that can hold keys of a partition, in the order in which keys are spread."""
        if not self.by_partition:
            return np.arange(len(self.file_ids))
        return self._of_partition.get(partition, np.zeros(0, np.int64))

    def numbers(self, keys: pa.Array, partition: str) -> npt.NDArray[np.int64]:
        """The number of the shard of each key of a partition, which has to have shards."""
        own = self.of(partition)
        return own[shard_numbers(keys, shards=len(own))]

    def of_partitions(self, partitions: Collection[str], *, least: int) -> KeyShards:
        """Those of these partitions alone, with `least` new ones for each that has none. All, if not by partition."""
        if not self.by_partition:
            return self
        ids: list[str] = []
        for partition in sorted(partitions):
            own = [self.file_ids[place] for place in self.of(partition)]
            ids += own or [partition_shard_id(partition, number) for number in range(least)]
        return replace(self, file_ids=tuple(ids))

    def beside(self, numbers: Collection[int]) -> list[int]:
        """The other shards of the partitions that these shards belong to; none if not by partition."""
        if not self.by_partition:
            return []
        places = set(numbers)
        touched = [own.tolist() for own in self._of_partition.values() if places.intersection(own.tolist())]
        return sorted({place for own in touched for place in own} - places)
