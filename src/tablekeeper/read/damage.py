"""What is wrong with the contents of a data file, as far as reading all of it tells."""

from __future__ import annotations

from tablekeeper.errors import CorruptTableError, TablekeeperError, UnsupportedFeatureError
from tablekeeper.model import BaseFile, LogFile
from tablekeeper.read.log_changes import BlockVisibility, decode_every_row, load_blocks
from tablekeeper.read.slice_rows import open_base_file, read_row_group
from tablekeeper.storage import Storage
from tablekeeper.storage.handle import StorageHandle

__all__ = ["find_base_damage", "find_log_damage"]


def find_log_damage(storage: Storage, log: LogFile, *, visibility: BlockVisibility, with_rows: bool) -> str:
    """Why a log file cannot be read, `""` if it can. Without `with_rows` only the frames of its blocks are read."""
    try:
        blocks = load_blocks(storage, log, least_bytes=0, visibility=visibility)
        if with_rows:
            for block in blocks:
                decode_every_row(block, file=log.path)
    except CorruptTableError as error:
        return error.reason
    except UnsupportedFeatureError as error:
        # A flipped byte can make a type or a version of one that nobody knows.
        return str(error)
    except TablekeeperError:
        # Gone since it was listed: whether it is missed, others say.
        return ""
    return ""


def find_base_damage(storage: Storage, base: BaseFile) -> str:
    """Why a base file cannot be read, or which page does not fit its checksum; `""` if all is well."""
    try:
        with open_base_file(StorageHandle(storage), base, verifies_pages=True) as file:
            for group in range(file.num_row_groups):
                read_row_group(file, group, columns=file.schema_arrow.names, file=base.path)
    except CorruptTableError as error:
        return error.reason
    except TablekeeperError:
        # Gone since it was listed: whether it is missed, others say.
        return ""
    return ""
