"""hoodie.properties: reading it, creating it and changing it.

A change replaces the file atomically, and only if it is still the version that was read: a process that lost the table
lock in its sleep changes nothing, and readers always find the file. Java removes the file during a change and keeps a
backup next to it. Readers fall back to the backup, and unfinished changes of Java processes are completed.
"""

from __future__ import annotations

from collections.abc import Mapping

from tablekeeper.config.table_config import TableConfig, parse_table_config
from tablekeeper.config.table_properties import CHECKSUM_KEY, DATABASE_KEY, NAME_KEY
from tablekeeper.errors import CorruptTableError, FencedError, InvalidRequestError, NotFoundError
from tablekeeper.format.properties import decode_properties, encode_properties, table_checksum, verify_checksum
from tablekeeper.storage import Storage

__all__ = [
    "PROPERTIES_FILE",
    "change_properties",
    "create_properties",
    "has_table",
    "load_table_config",
    "refuse_existing_table",
]

PROPERTIES_FILE = ".hoodie/hoodie.properties"
_BACKUP_FILE = ".hoodie/hoodie.properties.backup"
_LOOKS = 3
_COMMENT = "Properties written by tablekeeper"


def load_table_config(storage: Storage) -> TableConfig:
    """The table's configuration; `InvalidRequestError` if there is no table here.

    A change by Java removes the file and later its backup, so that a reader can miss both. By then the new file exists:
    reading again finds it.
    """
    properties = None
    for file in (PROPERTIES_FILE, _BACKUP_FILE) * _LOOKS:
        properties = _load(storage, file)
        if properties is not None:
            break
    if properties is None:
        raise InvalidRequestError(
            f"{storage.spec.uri} is not a Hudi table: it has no {PROPERTIES_FILE}. "
            "Check the path, or make the table with Table.create."
        )
    return parse_table_config(properties, file=PROPERTIES_FILE)


def has_table(storage: Storage) -> bool:
    """Whether there is a table, even if its properties are just being changed."""
    return storage.stat(PROPERTIES_FILE) is not None or storage.stat(_BACKUP_FILE) is not None


def create_properties(storage: Storage, properties: Mapping[str, str]) -> None:
    """Create the file of a new table. If several processes try, one succeeds and the others raise."""
    content = encode_properties(_with_checksum(properties), comment=_COMMENT)
    if not storage.put_if_absent(PROPERTIES_FILE, content):
        raise _exists_already(storage)


def refuse_existing_table(storage: Storage, *, timeline_directory: str) -> None:
    """Raise `InvalidRequestError` if there is a table here, or the timeline of one that has lost its properties."""
    is_begun = any(name[:1].isdigit() for name in storage.list_names(timeline_directory))
    if has_table(storage):
        raise _exists_already(storage)
    if is_begun:
        raise InvalidRequestError(
            f"{storage.spec.uri} has a timeline and no {PROPERTIES_FILE}: the table that is here has lost that file. "
            "Bring it back; to begin a new table, empty the folder or choose another path."
        )


def change_properties(storage: Storage, changes: Mapping[str, str | None]) -> TableConfig:
    """Set properties, or remove those whose new value is None. The caller holds the table lock.

    `FencedError` if somebody else has changed them since they were read: the lock was lost.
    """
    _recover(storage)
    old = storage.read_versioned(PROPERTIES_FILE)
    if old is None:
        raise NotFoundError(PROPERTIES_FILE)
    properties = decode_properties(old.data, file=PROPERTIES_FILE)
    for name, value in changes.items():
        if value is None:
            properties.pop(name, None)
        else:
            properties[name] = value
    properties = _with_checksum(properties)
    content = encode_properties(properties, comment=_COMMENT)
    if storage.replace(PROPERTIES_FILE, content, version=old.version) is None:
        raise _changed_meanwhile()
    return parse_table_config(properties, file=PROPERTIES_FILE)


def _recover(storage: Storage) -> None:
    """Finish or undo a change that a Java process left half done."""
    backup = _load_or_none(storage, _BACKUP_FILE)
    if backup is None:
        return
    if _load_or_none(storage, PROPERTIES_FILE) is None:
        _bring_back(storage, storage.read(_BACKUP_FILE))
    storage.delete(_BACKUP_FILE)


def _bring_back(storage: Storage, content: bytes) -> None:
    damaged = storage.read_versioned(PROPERTIES_FILE)
    if damaged is None:
        is_back = storage.put_if_absent(PROPERTIES_FILE, content)
    else:
        is_back = storage.replace(PROPERTIES_FILE, content, version=damaged.version) is not None
    if not is_back:
        raise _changed_meanwhile()


def _changed_meanwhile() -> FencedError:
    return FencedError(f"another process changed {PROPERTIES_FILE} meanwhile. Nothing was changed here; try again.")


def _exists_already(storage: Storage) -> InvalidRequestError:
    return InvalidRequestError(
        f"there is a table at {storage.spec.uri} already. Open it with Table.open, or choose another path."
    )


def _load(storage: Storage, path: str) -> dict[str, str] | None:
    try:
        properties = decode_properties(storage.read(path), file=path)
    except NotFoundError:
        return None
    database, table = properties.get(DATABASE_KEY, ""), properties.get(NAME_KEY, "")
    verify_checksum(properties.get(CHECKSUM_KEY), database=database, table=table, file=path)
    return properties


def _load_or_none(storage: Storage, path: str) -> dict[str, str] | None:
    try:
        return _load(storage, path)
    except CorruptTableError:
        return None


def _with_checksum(properties: Mapping[str, str]) -> dict[str, str]:
    return {**properties, CHECKSUM_KEY: _checksum(properties)}


def _checksum(properties: Mapping[str, str]) -> str:
    return table_checksum(database=properties.get(DATABASE_KEY, ""), table=properties.get(NAME_KEY, ""))
