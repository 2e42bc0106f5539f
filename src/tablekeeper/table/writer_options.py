"""Options that a table was created with, kept beside it for later writers.

Hudi stores nothing about the index in a table's properties; a writer that guessed wrong would make duplicate
rows. What `Table.create` was given is therefore kept in a folder of ours that Java ignores.

Whoever can write to a table can change that file, so that nothing in it may run code: a strategy named by its Python
path counts only in the options that a caller gives.
"""

from __future__ import annotations

import logging
from typing import Any

from tablekeeper.config.options import OPTIONS, Options
from tablekeeper.config.service_options import CLUSTERING_KEYS, COMPACTION_KEYS
from tablekeeper.errors import NotFoundError
from tablekeeper.format.properties import decode_properties, encode_properties
from tablekeeper.services.clustering_strategies import CLUSTERING_STRATEGIES
from tablekeeper.services.compaction_strategies import COMPACTION_STRATEGIES
from tablekeeper.services.strategies import StrategyRegistry
from tablekeeper.storage import Storage

__all__ = ["load_writer_options", "save_writer_options"]

_FILE = ".hoodie/.tablekeeper/writer.properties"
_LOG = logging.getLogger(__name__)
_STRATEGIES: dict[str, StrategyRegistry[Any]] = {
    COMPACTION_KEYS.strategy: COMPACTION_STRATEGIES,
    CLUSTERING_KEYS.strategy: CLUSTERING_STRATEGIES,
}


def save_writer_options(storage: Storage, options: Options) -> None:
    """Remember `options` of a table that is being made, in place of those that a failed attempt may have left."""
    storage.put(_FILE, encode_properties(options.given))


def load_writer_options(storage: Storage) -> Options:
    """What was remembered, but for options of a newer release and strategies that would have to be imported."""
    try:
        kept = decode_properties(storage.read(_FILE), file=_FILE)
    except NotFoundError:
        return Options()
    return Options({name: value for name, value in kept.items() if name in OPTIONS and _is_harmless(name, value)})


def _is_harmless(option: str, value: str) -> bool:
    registry = _STRATEGIES.get(option)
    if registry is None or all(registry.knows(name) for name in value.split(",") if name.strip()):
        return True
    _LOG.warning(
        "%s: the table remembers %s=%r, a class of somebody's own, which is not imported on its word. Pass the option "
        "yourself to use it; until then the default counts.",
        _FILE,
        option,
        value,
    )
    return False
