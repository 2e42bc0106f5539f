"""Finds the tables below a folder of any store by listing folders, up to a limit.

A folder with a `.hoodie/hoodie.properties` is a table, and is not searched further. Folders are listed level by
level, so that tables near the top are found before a deep tree of other files uses up the bound.
"""

from __future__ import annotations

from collections.abc import Mapping

from tablekeeper.errors import InvalidRequestError
from tablekeeper.runtime import Runtime
from tablekeeper.storage import Storage, open_storage
from tablekeeper.storage.protocol import canonical_uri, local_path
from tablekeeper.timeline.properties_file import has_table

__all__ = ["MOST_FOLDERS", "find_tables"]

MOST_FOLDERS = 100_000
"""How many folders are listed by default."""

_HOODIE = ".hoodie"
_WIDTH = 16
_DEEPEST = 30


def find_tables(
    root: str,
    *,
    storage_options: Mapping[str, str] | None = None,
    most_folders: int = MOST_FOLDERS,
    runtime: Runtime,
) -> list[str]:
    """Canonical URIs of the tables below `root` (or `root` itself), sorted.

    `InvalidRequestError` if there is none, or if it takes more than `most_folders` listings to know.
    """
    storage = open_storage(root, options=storage_options, runtime=runtime)

    def look(folder: str) -> tuple[bool, list[str]]:
        return _look_into(storage, folder, storage_options=storage_options, runtime=runtime)

    found: list[str] = []
    level = [""]
    listed = 0
    for _ in range(_DEEPEST):
        listed += len(level)
        if listed > most_folders:
            raise InvalidRequestError(
                f"{storage.spec.uri}: more than {most_folders} folders, and {len(found)} tables in those that were "
                "looked into. Give a folder nearer to the tables, or allow more with --most-folders."
            )
        looks = runtime.threads.map(look, level, width=_WIDTH)
        found += [folder for folder, (is_table, _) in zip(level, looks, strict=True) if is_table]
        level = [_below(folder, name) for folder, (_, names) in zip(level, looks, strict=True) for name in names]
        if not level:
            break
    if not found:
        raise InvalidRequestError(f"{storage.spec.uri}: no table below this folder")
    return sorted(_place_below(storage.spec.uri, folder) for folder in found)


def _look_into(
    storage: Storage, folder: str, *, storage_options: Mapping[str, str] | None, runtime: Runtime
) -> tuple[bool, list[str]]:
    """Whether the folder is a table, and the folders in it to go on with."""
    names = storage.list_directories(folder)
    here = _place_below(storage.spec.uri, folder)
    if _HOODIE in names and has_table(open_storage(here, options=storage_options, runtime=runtime)):
        return True, []
    return False, [name for name in names if not name.startswith((".", "_"))]


def _place_below(uri: str, folder: str) -> str:
    """The URI of a folder below a place. In those of files, characters such as `%` are written as codes."""
    is_file = folder and uri.startswith("file:")
    return canonical_uri(local_path(uri) / folder) if is_file else _below(uri, folder)


def _below(folder: str, name: str) -> str:
    return f"{folder.rstrip('/')}/{name}" if folder and name else folder or name
