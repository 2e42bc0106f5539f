"""Proof that the files which a replace commit hid are gone, before the commit leaves the active timeline.

Readers leave replaced file groups out because a replace commit on the active timeline says so. Once it is archived,
files of them that still exist become visible again, and rows appear twice. That the last clean went past the commit is
not enough: a deletion may have failed, and files that a savepoint protected stay when the savepoint is deleted. So the
partitions are listed. Replaced groups get no new files, so this needs no lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tablekeeper.format.commit_metadata import decode_commit_metadata
from tablekeeper.format.history import ArchivedInstant
from tablekeeper.model import Action, FileGroupId, RequestedTime, join_path
from tablekeeper.services.archive.plan import Bound
from tablekeeper.snapshot.slices import decode_partition_files, load_files_by_listing
from tablekeeper.txn.environment import TableEnvironment

__all__ = ["find_replaced_leftovers"]

_MAX_PARTITIONS = 1000


@dataclass(frozen=True, slots=True)
class _Replaced:
    at: RequestedTime
    groups: frozenset[FileGroupId]

    @property
    def partitions(self) -> set[str]:
        return {group.partition for group in self.groups}


def find_replaced_leftovers(environment: TableEnvironment, instants: Sequence[ArchivedInstant]) -> Bound | None:
    """The first of these instants that has to stay, None if all may go.

    The number of partitions listed in one run is limited; a commit that exceeds the limit is examined alone.
    """
    looked_at: set[str] = set()
    for replaced in _replace_commits(instants):
        if looked_at and len(looked_at | replaced.partitions) > _MAX_PARTITIONS:
            return Bound(replaced.at, "the files that this commit replaced are looked for in the next run")
        looked_at |= replaced.partitions
        files = load_files_by_listing(environment.storage, sorted(replaced.partitions), runtime=environment.runtime)
        for partition, listed in files.items():
            found = decode_partition_files(partition, listed)
            left = [base.name for base in found.bases if base.group in replaced.groups]
            left += [log.name for log in found.logs if log.group in replaced.groups]
            if left:
                place = join_path(partition, min(left))
                return Bound(replaced.at, f"this commit replaced {place}, which no clean has removed yet")
    return None


def _replace_commits(instants: Sequence[ArchivedInstant]) -> list[_Replaced]:
    found = []
    for archived in instants:
        if archived.instant.action is Action.REPLACE_COMMIT and archived.metadata:
            metadata = decode_commit_metadata(archived.metadata, file=f"archived {archived.instant}")
            groups = frozenset(
                FileGroupId(partition, file_id)
                for partition, file_ids in (metadata.replaced or {}).items()
                for file_id in file_ids
            )
            found.append(_Replaced(archived.instant.requested_at, groups))
    return found
