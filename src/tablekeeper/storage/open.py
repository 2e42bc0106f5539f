"""From what users write to a store: `/a/b`, `file:///a/b`, `memory://name`, `s3://bucket/path`, …

Stores are kept, so that the many small tasks of a worker that name the same one share its connections.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module

from tablekeeper.errors import InvalidRequestError
from tablekeeper.runtime import SYSTEM_RUNTIME, Runtime
from tablekeeper.storage.local import LocalStorage
from tablekeeper.storage.memory import MemoryStorage
from tablekeeper.storage.protocol import Storage, StorageSpec, canonical_uri, local_path

__all__ = ["open_storage"]

_OPEN_STORES = 256
_TRUE = {"true", "1", "yes", "on"}
_FALSE = {"false", "0", "no", "off"}


def open_storage(
    location: str | os.PathLike[str] | StorageSpec,
    *,
    options: Mapping[str, str] | None = None,
    runtime: Runtime = SYSTEM_RUNTIME,
) -> Storage:
    """The store at `location`. `options` are the store's own settings and are added to those of a spec.

    Local stores know `fsync`; those of object stores are listed in `object_store`. The same location and options
    give the same store as long as it is among the last that were opened.
    """
    merged = _checked(options)
    if isinstance(location, StorageSpec):
        merged = {**location.options, **merged}
        location = location.uri
    # A forked process must not share connections with its parent, hence the process id.
    return _opened(canonical_uri(location), tuple(sorted(merged.items())), _SameRuntime(runtime), os.getpid())


def _checked(options: object) -> dict[str, str]:
    if options is None:
        return {}
    if not isinstance(options, Mapping) or not all(isinstance(part, str) for pair in options.items() for part in pair):
        # Without the values, among which there may be secrets.
        raise InvalidRequestError("storage_options: give texts by name, for example {'region': 'eu-west-1'}.")
    return dict(options)


@dataclass(frozen=True, eq=False)
class _SameRuntime:
    """A runtime as part of a cache key: equal only to itself, whether or not its clock can be hashed."""

    runtime: Runtime

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _SameRuntime) and other.runtime is self.runtime

    def __hash__(self) -> int:
        return id(self.runtime)


@lru_cache(maxsize=_OPEN_STORES)
def _opened(uri: str, options: tuple[tuple[str, str], ...], key: _SameRuntime, _process: int) -> Storage:
    settings = dict(options)
    if uri.startswith("file://"):
        fsync = _flag("fsync", settings.pop("fsync", "false"))
        _refuse_unknown(settings, uri=uri, known="fsync")
        return LocalStorage(local_path(uri), fsync=fsync, runtime=key.runtime)
    if uri.startswith("memory://"):
        _refuse_unknown(settings, uri=uri, known="none")
        return MemoryStorage(uri, runtime=key.runtime)
    return _object_storage(uri, settings, key.runtime)


def _object_storage(uri: str, options: Mapping[str, str], runtime: Runtime) -> Storage:
    try:
        module = import_module("tablekeeper.storage.object_store")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "obstore":
            raise
        raise InvalidRequestError(
            f"{uri}: object stores need the obstore package. Install it with: pip install 'tablekeeper[object-store]'"
        ) from error
    storage: Storage = module.ObjectStorage(uri, options=options, runtime=runtime)
    return storage


def _flag(name: str, value: str) -> bool:
    folded = value.lower()
    if folded not in _TRUE | _FALSE:
        raise InvalidRequestError(f"The storage option {name} is {value!r}. Use true or false.")
    return folded in _TRUE


def _refuse_unknown(settings: Mapping[str, str], *, uri: str, known: str) -> None:
    if settings:
        names = ", ".join(sorted(settings))
        raise InvalidRequestError(f"{uri}: unknown storage options: {names}. Known for this store: {known}.")
