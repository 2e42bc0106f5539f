"""Symbolic links below a local store: what lies behind one may belong to somebody else."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tablekeeper.storage.paths import local_path
from tablekeeper.storage.protocol import StorageSpec

__all__ = ["find_linked"]


def find_linked(spec: StorageSpec, paths: Iterable[str]) -> frozenset[str]:
    """Those of `paths` that are symbolic links, or lie behind one below the store's root. Other stores have none."""
    if not spec.uri.startswith("file:"):
        return frozenset()
    root = Path(local_path(spec.uri))
    known: dict[str, bool] = {"": False}

    def is_linked(path: str) -> bool:
        if path not in known:
            known[path] = is_linked(path.rpartition("/")[0]) or (root / path).is_symlink()
        return known[path]

    return frozenset(path for path in paths if is_linked(path))
