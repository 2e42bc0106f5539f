"""`Snapshot`: the state of a table at an instant. Immutable; a reload makes a new one.

Only the partitions asked for are looked at, so the cost of a snapshot follows the work that needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Protocol

from tablekeeper.config.table_config import TableConfig
from tablekeeper.errors import CorruptTableError
from tablekeeper.format.data_files import PARTITION_METADATA_NAME
from tablekeeper.metadata_table.listing import MetadataTable, open_metadata_table
from tablekeeper.model import Action, CommitMetadata, FileGroupId, FileSlice, Instant, RequestedTime, join_path
from tablekeeper.runtime import Runtime
from tablekeeper.snapshot.integrity import (
    committed_files,
    find_data_file,
    plan_damage,
    refuse_damage,
    refuse_lost_timeline,
    refuse_wrong_type,
)
from tablekeeper.snapshot.slices import (
    Files,
    SliceRules,
    decode_partition_files,
    load_all_files_by_listing,
    load_files_by_listing,
    plan_slices,
)
from tablekeeper.storage import Storage
from tablekeeper.timeline import Timeline, load_commit_metadata, load_timeline
from tablekeeper.timeline.history import archived_completions, refuse_lost_history

__all__ = ["Pruning", "Snapshot", "load_partition_files", "load_partitions", "load_replaced", "load_snapshot"]


class Pruning(Protocol):
    """What need not be looked at. Both answers are False only where nothing can be of interest."""

    def may_match(self, partition: str) -> bool:
        """Whether a partition can be of interest."""
        ...

    def may_lead(self, directory: str) -> bool:
        """Whether a partition in this directory, at any depth, or the directory itself, can be."""
        ...


@dataclass(frozen=True)
class Snapshot:
    """The visible slices of some partitions of a table, newest first for each file group."""

    config: TableConfig
    timeline: Timeline
    as_of: RequestedTime | None
    groups: Mapping[FileGroupId, tuple[FileSlice, ...]]
    partitions: tuple[str, ...]

    @cached_property
    def latest(self) -> tuple[FileSlice, ...]:
        """The newest slice of each file group, by partition and file id."""
        return tuple(slices[0] for slices in self.groups.values())


def load_partitions(storage: Storage, config: TableConfig, timeline: Timeline, *, runtime: Runtime) -> list[str]:
    """All partition paths of the table, sorted; `[""]` if it has none."""
    return list(load_partition_files(storage, config, timeline, runtime=runtime))


def load_partition_files(
    storage: Storage, config: TableConfig, timeline: Timeline, *, runtime: Runtime
) -> Mapping[str, Files] | list[str]:
    """The same, with their files if the listing shows them."""
    if not config.is_partitioned:
        return [""]
    metadata_table = open_metadata_table(storage, config, timeline, runtime=runtime)
    if metadata_table is not None:
        return metadata_table.partitions()
    return load_all_files_by_listing(storage, runtime=runtime).partitions


def load_snapshot(
    storage: Storage,
    config: TableConfig,
    timeline: Timeline,
    *,
    runtime: Runtime,
    partitions: Iterable[str] | None = None,
    as_of: RequestedTime | None = None,
    pruning: Pruning | None = None,
    known: Sequence[tuple[Instant, CommitMetadata]] = (),
    listed: Mapping[str, Files] | None = None,
) -> Snapshot:
    """Look at `partitions` (all by default, less those that `pruning` rules out) as of a requested time (or now).

    What replace commits and the `known` commits wrote is compared with what is there: they are at hand, so that it
    costs nothing. `listed` are the files of all partitions, if directories were listed since the timeline was loaded.
    `CorruptTableError` if a file is missing or cut off.
    """
    partitions = None if partitions is None else frozenset(partitions)
    metadata_table = (
        open_metadata_table(storage, config, timeline, runtime=runtime) if config.has_metadata_table else None
    )
    unmarked: Mapping[str, Files] = {}
    if partitions is None and config.is_partitioned and metadata_table is None:
        may_lead = pruning.may_lead if pruning is not None else _everywhere
        everything = load_all_files_by_listing(storage, runtime=runtime, may_lead=may_lead)
        files = {p: found for p, found in everything.partitions.items() if pruning is None or pruning.may_match(p)}
        unmarked = {p: found for p, found in everything.unmarked.items() if pruning is None or pruning.may_match(p)}
    else:
        wanted = _wanted_partitions(config, metadata_table, partitions)
        wanted = [partition for partition in wanted if pruning is None or pruning.may_match(partition)]
        if metadata_table is not None:
            files = metadata_table.files(wanted)
        elif listed is not None:
            files = {partition: listed.get(partition, []) for partition in wanted}
        else:
            files = load_files_by_listing(storage, wanted, runtime=runtime)
    replacing = _load_replacing(storage, config, timeline, runtime=runtime)
    rules = SliceRules(
        timeline=timeline,
        version=config.version,
        as_of=as_of,
        replaced=_replaced_by(replacing),
        archived_completion=archived_completions(storage, config),
    )
    if not len(timeline):
        found_files = (find_data_file(partition, found) for partition, found in {**unmarked, **files}.items())
        known_file = next(filter(None, found_files), None)
        if known_file is not None:
            refuse_lost_timeline(storage, config, timeline, known_file=known_file)
    _refuse_unmarked(unmarked, rules)
    if as_of is None:
        commits = dict((*replacing, *known))
        # A partition that was asked for may be gone as a whole, and then it is in no listing.
        inside = _inside(partitions, pruning)
        if plan_damage(files, _named_inside(commits.values(), inside), rules):
            _refuse_damage(storage, config, commits, inside, runtime=runtime)
    groups: dict[FileGroupId, tuple[FileSlice, ...]] = {}
    instants: set[RequestedTime] = set()
    for partition, found in files.items():
        here = decode_partition_files(partition, found)
        instants.update(base.instant for base in here.bases)
        instants.update(log.instant for log in here.logs)
        groups.update(plan_slices(here, rules))
    begins = timeline.first_active_write
    older = {instant for instant in instants if begins is not None and instant < begins}
    if any(not timeline.is_archived(instant) and timeline.find(instant) is None for instant in older):
        # Files of a write that died and came too late, as a rule, which nobody reads; or the archive is not whole.
        refuse_lost_history(storage, config)
    if as_of is None:
        refuse_wrong_type(config, (slices[0] for slices in groups.values()))
    return Snapshot(config, timeline, as_of, groups, tuple(files))


def _refuse_damage(
    storage: Storage,
    config: TableConfig,
    commits: Mapping[Instant, CommitMetadata],
    inside: Callable[[str], bool],
    *,
    runtime: Runtime,
) -> None:
    """Check again: a rollback, commit or clean between the two loads looks like damage."""
    timeline = load_timeline(storage, config)
    standing = set(timeline.completed)
    named = _named_inside((commit for instant, commit in commits.items() if instant in standing), inside)
    partitions = sorted({path.rpartition("/")[0] for path in named})
    rules = SliceRules(
        timeline=timeline,
        version=config.version,
        replaced=load_replaced(storage, config, timeline, runtime=runtime),
        archived_completion=archived_completions(storage, config),
    )
    refuse_damage(plan_damage(load_files_by_listing(storage, partitions, runtime=runtime), named, rules))


def _inside(partitions: Collection[str] | None, pruning: Pruning | None) -> Callable[[str], bool]:
    """Whether a partition belongs to the snapshot, exists or not."""
    if pruning is None:
        return _everywhere if partitions is None else partitions.__contains__
    return lambda partition: (partitions is None or partition in partitions) and pruning.may_match(partition)


def _named_inside(commits: Iterable[CommitMetadata], inside: Callable[[str], bool]) -> dict[str, int]:
    named = committed_files(commits)
    partitions = {path.rpartition("/")[0] for path in named}
    wanted = {partition for partition in partitions if inside(partition)}
    return {path: size for path, size in named.items() if path.rpartition("/")[0] in wanted}


def load_replaced(
    storage: Storage, config: TableConfig, timeline: Timeline, *, runtime: Runtime
) -> dict[FileGroupId, RequestedTime]:
    """File groups hidden by completed replace commits, with the instant that hid them."""
    return _replaced_by(_load_replacing(storage, config, timeline, runtime=runtime))


def _load_replacing(
    storage: Storage, config: TableConfig, timeline: Timeline, *, runtime: Runtime
) -> list[tuple[Instant, CommitMetadata]]:
    instants = [i for i in timeline.completed if i.action is Action.REPLACE_COMMIT]
    read = partial(load_commit_metadata, storage, config)
    return list(zip(instants, runtime.threads.map(read, instants), strict=True))


def _replaced_by(commits: Iterable[tuple[Instant, CommitMetadata]]) -> dict[FileGroupId, RequestedTime]:
    replaced: dict[FileGroupId, RequestedTime] = {}
    for instant, metadata in commits:
        for partition, file_ids in (metadata.replaced or {}).items():
            for file_id in file_ids:
                replaced.setdefault(FileGroupId(partition, file_id), instant.requested_at)
    return replaced


def _refuse_unmarked(unmarked: Mapping[str, Files], rules: SliceRules) -> None:
    """Former partitions have committed files; directories that a writer or a clean is working on have none."""
    for directory, found in unmarked.items():
        if plan_slices(decode_partition_files(directory, found), rules):
            raise CorruptTableError(
                file=join_path(directory, PARTITION_METADATA_NAME),
                reason="it is missing, and the directory holds committed files",
            )


def _everywhere(directory: str) -> bool:
    del directory
    return True


def _wanted_partitions(
    config: TableConfig, metadata_table: MetadataTable | None, partitions: Collection[str] | None
) -> list[str]:
    if partitions is not None:
        return sorted(partitions)
    if not config.is_partitioned or metadata_table is None:
        return [""]
    return metadata_table.partitions()
