"""What a plan of compaction, log compaction or clustering says beside its file groups, read without decoding those.

The next plan needs the partitions that the last one left out, and nothing of the tens of thousands of file groups that
it may hold. Our large plans carry their outline in the header of the file as well; of all others it is decoded by
stepping over the groups.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from tablekeeper.errors import CorruptTableError
from tablekeeper.format.avro_container import decode_notes, decode_record
from tablekeeper.model import FileGroupId, PlanOutline

__all__ = ["decode_outline", "decode_outline_note", "encode_outline_note"]

_NOTE = "tablekeeper.outline"
_LARGE = 1_000
_GROUPS = frozenset({"operations", "inputGroups"})
_OF_GROUPS = frozenset(
    {"baseInstantTime", "dataFilePath", "deltaFilePaths", "bootstrapFilePath", "metrics", "numOutputFileGroups"}
)
_COMPACTION = "HoodieCompactionPlan"
_REPLACE = "HoodieRequestedReplaceMetadata"


def encode_outline_note(outline: PlanOutline, *, groups: int) -> dict[str, bytes]:
    """Notes for the header of a plan of so many file groups; none for a small one."""
    if groups < _LARGE:
        return {}
    missing = list(outline.missing) if outline.missing is not None else None
    record = {"missing": missing, "params": dict(outline.params), "extra": dict(outline.extra)}
    return {_NOTE: json.dumps(record, separators=(",", ":"), sort_keys=True).encode()}


def decode_outline_note(data: bytes, *, file: str) -> PlanOutline | None:
    """The outline from the header of a plan, of which `data` is the beginning; None if it is not in there."""
    try:
        note = decode_notes(data, file=file).get(_NOTE)
    except CorruptTableError:
        # Cut off inside the header, or damaged: reading the whole file will tell.
        return None
    if note is None:
        return None
    try:
        record = json.loads(note)
        missing = record["missing"]
        return PlanOutline(
            missing=None if missing is None else tuple(str(each) for each in missing),
            params={str(key): str(value) for key, value in record["params"].items()},
            extra={str(key): str(value) for key, value in record["extra"].items()},
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptTableError(file=file, reason=f"the outline of the plan does not decode ({error})") from error


def decode_outline(data: bytes, *, file: str, is_clustering: bool, with_groups: bool = False) -> PlanOutline:
    """The outline of a plan, from the whole of its file. With the groups it takes as long as there are many of them."""
    noted = None if with_groups else decode_outline_note(data, file=file)
    if noted is not None:
        return noted
    if is_clustering and not data:
        # As old writers leave the file of a replace commit.
        return PlanOutline()
    schema, without = _REPLACE if is_clustering else _COMPACTION, _OF_GROUPS if with_groups else _GROUPS
    record = decode_record(data, file=file, schema_name=schema, without=without)
    plan = record["clusteringPlan"] if is_clustering else record
    if plan is None:
        return PlanOutline()
    missing, strategy = plan["missingSchedulePartitions"], plan["strategy"]
    return PlanOutline(
        missing=None if missing is None else tuple(missing),
        params=(strategy["strategyParams"] or {}) if strategy is not None else {},
        extra=plan["extraMetadata"] or {},
        file_groups=frozenset(_file_groups(plan, is_clustering=is_clustering)) if with_groups else frozenset(),
    )


def _file_groups(plan: Mapping[str, Any], *, is_clustering: bool) -> Iterator[FileGroupId]:
    groups = plan["inputGroups"] or () if is_clustering else ()
    entries = [each for group in groups for each in group["slices"] or ()] if is_clustering else plan["operations"]
    for entry in entries or ():
        yield FileGroupId(entry["partitionPath"] or "", entry["fileId"] or "")
