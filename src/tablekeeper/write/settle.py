"""Decides where a row goes whose key is in another partition than the row names, or in several (global index). Pure.

- If rows do not move, a row goes to the slice that holds its key. If logs have deleted the key everywhere, the first
  slice that held it takes the row: Java does not look for deletes in logs, and would find the key in two places if
  the row went elsewhere.
- If rows move, a row still updates the stored row in place if it is marked as deleted, or if the stored row has a
  greater ordering value.
- Otherwise it goes to the partition that it names, where it updates the stored row or is new. Its key is deleted from
  all other slices.
- A log may have deleted the key from a slice in which the index found it. If no slice has a row of the key, it is
  deleted again from all but the slice that takes the row, so that this write conflicts with a concurrent one that
  adds the key to one of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

__all__ = ["Found", "Hits", "Settled", "settle"]

_Numbers = npt.NDArray[np.int64]
_Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Hits:
    """Pairs of a key and a slice in which it was found, by number, sorted by key."""

    keys: _Numbers
    slices: _Numbers

    def __len__(self) -> int:
        return len(self.keys)

    @classmethod
    def of(cls, keys: _Numbers, slices: _Numbers, *, slice_count: int) -> Self:
        """From pairs in any order, with duplicates."""
        pairs = np.unique(keys * slice_count + slices)
        return cls(*np.divmod(pairs, slice_count))

    def where(self, mask: _Mask) -> Hits:
        """The hits for which the mask is true."""
        return Hits(self.keys[mask], self.slices[mask])

    def join(self, keys: _Numbers) -> tuple[_Numbers, _Numbers]:
        """The position of each of these `keys` that was found, once for each slice that has it, and the slice."""
        first = np.searchsorted(self.keys, keys, side="left")
        counts = np.searchsorted(self.keys, keys, side="right") - first
        places = np.repeat(np.arange(len(keys)), counts)
        within = np.arange(len(places)) - np.repeat(np.cumsum(counts) - counts, counts)
        return places, self.slices[first[places] + within]


@dataclass(frozen=True, slots=True)
class Found:
    """What is known about each hit.

    `is_there`: the slice has a row of the key; `is_newer`: that row has a greater ordering value than the new one;
    `is_own`: the slice is in the partition that the new row names; `is_deleted`: the new row is a deletion.
    """

    is_there: _Mask
    is_newer: _Mask
    is_own: _Mask
    is_deleted: _Mask


@dataclass(frozen=True, slots=True)
class Settled:
    """Which hits take the row of their key, from which the key is deleted, and the keys whose row is new."""

    takes: _Mask
    leaves: _Mask
    fresh: _Numbers


def settle(hits: Hits, found: Found, keys: _Numbers, *, moves: bool) -> Settled:
    """Decide for the one row of each of these `keys`, which include those of the hits."""
    count = int(keys.max(initial=-1)) + 1
    is_lost = ~_any_of_key(hits, found.is_there, count)[hits.keys]
    if moves:
        keeps = found.is_there & (found.is_deleted | found.is_newer)
        stays = _any_of_key(hits, keeps, count)[hits.keys]
        takes = np.where(stays, keeps, found.is_there & found.is_own)
    else:
        is_first = np.diff(hits.keys, prepend=-1) != 0
        takes = found.is_there | (is_lost & is_first)
    is_taken = _any_of_key(hits, takes, count)
    leaves = ~takes & (found.is_there | is_lost | ~is_taken[hits.keys])
    return Settled(takes, leaves, keys[~is_taken[keys]])


def _any_of_key(hits: Hits, mask: _Mask, count: int) -> _Mask:
    result: _Mask = np.zeros(count, bool)
    result[hits.keys[mask]] = True
    return result
