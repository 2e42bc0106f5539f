"""Options that a table was created with, stored with it for later writers.

Hudi stores nothing about the index in a table's properties; a writer that guessed wrong would make duplicate
rows. What `Table.create` was given is therefore kept in a folder of our own that Java ignores.

If several processes create a table at the same time, the properties file of one becomes the table. Each stores its
options in a file that is named after its content, and the properties name the file that counts; in tables of older
releases, which name none, it is `writer.properties`.

Every writer of a table can change that file, so that nothing in it may run code: a strategy named by its Python
path, and the address of a Table Management Service, count only in the options that a caller gives.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Mapping
from typing import Any

from tablekeeper.config.hosting_settings import HostingSettings
from tablekeeper.config.options import OPTIONS, Options
from tablekeeper.config.service_settings import ClusteringSettings, CompactionSettings
from tablekeeper.config.table_config import TableConfig
from tablekeeper.errors import NotFoundError
from tablekeeper.format.properties import decode_properties, encode_properties
from tablekeeper.services.clustering.strategies import CLUSTERING_STRATEGIES
from tablekeeper.services.compaction.strategies import COMPACTION_STRATEGIES
from tablekeeper.services.plans.strategies import StrategyRegistry
from tablekeeper.storage import Storage
from tablekeeper.timeline.properties_file import load_table_config

__all__ = ["WRITER_OPTIONS_KEY", "forget_writer_options", "load_writer_options", "save_writer_options"]

WRITER_OPTIONS_KEY = "tablekeeper.writer.options"
"""The property that names the file."""

_DIRECTORY = ".hoodie/.tablekeeper"
_OLD_FILE = f"{_DIRECTORY}/writer.properties"
_MARK = re.compile("[0-9a-f]{16}")
_LOG = logging.getLogger(__name__)
# A table must not decide where a writer sends requests with its token.
_OF_THE_CALLER = frozenset(each.name for each in HostingSettings.all_settings())
_STRATEGIES: dict[str, StrategyRegistry[Any]] = {
    CompactionSettings.key("strategy"): COMPACTION_STRATEGIES,
    ClusteringSettings.key("strategy"): CLUSTERING_STRATEGIES,
}


def save_writer_options(storage: Storage, options: Options) -> dict[str, str]:
    """Store `options` of a table that is being created; returns the properties that refer to them."""
    kept = {name: value for name, value in options.given.items() if name not in _OF_THE_CALLER}
    if not kept:
        return {}
    content = encode_properties(kept)
    mark = hashlib.sha256(content).hexdigest()[:16]
    storage.put(_file(mark), content)
    return {WRITER_OPTIONS_KEY: mark}


def forget_writer_options(storage: Storage, kept: Mapping[str, str]) -> None:
    """Delete what `save_writer_options` stored, because another process created the table, unless that uses it too."""
    mark = kept.get(WRITER_OPTIONS_KEY)
    if mark is not None and load_table_config(storage).properties.get(WRITER_OPTIONS_KEY) != mark:
        storage.delete(_file(mark))


def load_writer_options(storage: Storage, config: TableConfig | None = None) -> Options:
    """The stored options, without those of a newer release and strategies that would have to be imported."""
    mark = (config or load_table_config(storage)).properties.get(WRITER_OPTIONS_KEY)
    file = _OLD_FILE if mark is None or not _MARK.fullmatch(mark) else _file(mark)
    try:
        kept = decode_properties(storage.read(file), file=file)
    except NotFoundError:
        return Options()
    return Options(
        {
            name: value
            for name, value in kept.items()
            if name in OPTIONS and name not in _OF_THE_CALLER and _is_harmless(name, value, file=file)
        }
    )


def _file(mark: str) -> str:
    return f"{_DIRECTORY}/writer-{mark}.properties"


def _is_harmless(option: str, value: str, *, file: str) -> bool:
    registry = _STRATEGIES.get(option)
    if registry is None or all(registry.knows(name) for name in value.split(",") if name.strip()):
        return True
    _LOG.warning(
        "%s: the table remembers %s=%r, a class of somebody's own, which is not imported on its word. Pass the option "
        "yourself to use it; until then the default counts.",
        file,
        option,
        value,
    )
    return False
