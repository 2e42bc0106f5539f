"""The archived timeline: instants that left the active one, kept in an LSM tree of Parquet files."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from tablekeeper.config.table_config import TableConfig
from tablekeeper.errors import NotFoundError
from tablekeeper.format.history import ArchivedInstant, decode_history_file, decode_manifest
from tablekeeper.model import CompletionTime, RequestedTime, join_path
from tablekeeper.storage import Storage

__all__ = ["archived_completions", "load_history"]


def load_history(storage: Storage, config: TableConfig) -> list[ArchivedInstant]:
    """All archived instants by requested time; none where there is no LSM history (version 6, or a young table)."""
    if config.version < 8:
        return []
    manifest = _newest_manifest(storage, config.history_directory)
    if manifest is None:
        return []
    instants: list[ArchivedInstant] = []
    for entry in decode_manifest(storage.read(manifest), file=manifest):
        path = join_path(config.history_directory, entry.name)
        instants += decode_history_file(storage.read(path), file=path)
    return sorted(instants, key=lambda archived: archived.instant.requested_at)


def archived_completions(storage: Storage, config: TableConfig) -> Callable[[RequestedTime], CompletionTime | None]:
    """A look-up of completion times in the history, which is read at most once and only when asked."""

    @cache
    def completions() -> dict[RequestedTime, CompletionTime]:
        return {
            archived.instant.requested_at: archived.instant.completed_at
            for archived in load_history(storage, config)
            if archived.instant.completed_at is not None
        }

    return lambda requested_at: completions().get(requested_at)


def _newest_manifest(storage: Storage, directory: str) -> str | None:
    """The manifest that `_version_` names; the highest one there is if that file cannot be read."""
    numbers = {
        int(file.name.removeprefix("manifest_")): file.path
        for file in storage.list_files(directory)
        if file.name.removeprefix("manifest_").isdigit()
    }
    if not numbers:
        return None
    try:
        current = storage.read(join_path(directory, "_version_")).decode("ascii", "replace").strip()
    except NotFoundError:
        current = ""
    if current.isdigit() and int(current) in numbers:
        return numbers[int(current)]
    return numbers[max(numbers)]
