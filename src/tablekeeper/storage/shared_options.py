"""Options that are given once for stores of several kinds: each store gets those that it knows."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec

from tablekeeper.errors import InvalidRequestError
from tablekeeper.storage.protocol import canonical_uri

__all__ = ["options_for", "refuse_unknown_options"]

_LOCAL = {"file": frozenset({"fsync"}), "memory": frozenset[str]()}
_OBJECT_STORES = ("s3", "gs", "az")


def options_for(location: str, options: Mapping[str, str]) -> dict[str, str]:
    """Of these options those that the store at `location` knows."""
    scheme = canonical_uri(location).partition("://")[0]
    return {name: value for name, value in options.items() if _knows(scheme, name)}


def refuse_unknown_options(options: Mapping[str, str]) -> None:
    """Refuse an option that no kind of store knows: most likely a typing error."""
    # Without their client nobody can tell which options object stores have; opening one says what is missing.
    if find_spec("obstore") is None:
        return
    unknown = [name for name in options if not any(_knows(scheme, name) for scheme in (*_LOCAL, *_OBJECT_STORES))]
    if unknown:
        raise InvalidRequestError(
            f"no store knows the storage options {', '.join(sorted(unknown))}: check their names."
        )


@lru_cache(maxsize=1024)
def _knows(scheme: str, name: str) -> bool:
    if scheme in _LOCAL:
        return name in _LOCAL[scheme]
    if find_spec("obstore") is None:
        return True
    return bool(import_module("tablekeeper.storage.object_options").knows_option(scheme, name))
