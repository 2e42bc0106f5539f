"""Options that a table was created with, kept beside it for later writers.

Hudi stores nothing about the index in a table's properties; a writer that guessed wrong would make duplicate
rows. What `Table.create` was given is therefore kept in a folder of ours that Java ignores.
"""

from __future__ import annotations

from tablekeeper.config.options import OPTIONS, Options
from tablekeeper.errors import NotFoundError
from tablekeeper.format.properties import decode_properties, encode_properties
from tablekeeper.storage import Storage

__all__ = ["load_writer_options", "save_writer_options"]

_FILE = ".hoodie/.tablekeeper/writer.properties"


def save_writer_options(storage: Storage, options: Options) -> None:
    """Remember `options` of a table that is being made, in place of those that a failed attempt may have left."""
    storage.put(_FILE, encode_properties(options.given))


def load_writer_options(storage: Storage) -> Options:
    """What was remembered. Options of a newer release that this one does not know are left out."""
    try:
        kept = decode_properties(storage.read(_FILE), file=_FILE)
    except NotFoundError:
        return Options()
    return Options({name: value for name, value in kept.items() if name in OPTIONS})
