"""Where the rows of keys go that a global index found in another partition than the rows name, or in several. Pure.

- If rows do not move, a row goes to where its key is. Java does not look whether a log has deleted the key there, and
  would find it in two places, had it gone elsewhere: a slice that had the key takes the row if no other has it now.
- If rows move, a row updates the row of its key where that is all the same if it says of itself that it is deleted, or
  if the stored row has a greater ordering value.
- Otherwise it belongs to the partition that it names: it updates the row that is there, or is new there. Its key leaves
  all other slices.
- A slice that was found to have the key may have no row of it any more: a log deletes it. If no slice has one, all are
  told so again but for the one that takes the row: a writer who brings the key back to one touches the same group.
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
    """Keys and slices that were found to have them, by number, sorted by key. A key stands once for each slice."""

    keys: _Numbers
    slices: _Numbers

    def __len__(self) -> int:
        return len(self.keys)

    @classmethod
    def of(cls, keys: _Numbers, slices: _Numbers, *, slice_count: int) -> Self:
        """From pairs in any order, some of them several times."""
        pairs = np.unique(keys * slice_count + slices)
        return cls(*np.divmod(pairs, slice_count))

    def where(self, mask: _Mask) -> Hits:
        """Those for which the mask is true."""
        return Hits(self.keys[mask], self.slices[mask])

    def join(self, keys: _Numbers) -> tuple[_Numbers, _Numbers]:
        """The place of each of these `keys` that was found, once for each slice that has it, and the slice."""
        first = np.searchsorted(self.keys, keys, side="left")
        counts = np.searchsorted(self.keys, keys, side="right") - first
        places = np.repeat(np.arange(len(keys)), counts)
        within = np.arange(len(places)) - np.repeat(np.cumsum(counts) - counts, counts)
        return places, self.slices[first[places] + within]


@dataclass(frozen=True, slots=True)
class Found:
    """What is known of each hit: that the slice has a row of the key, which has a greater ordering value than the new
    one or not, that it is in the partition that the new row names, and that this row is a deletion.
    """

    is_there: _Mask
    is_newer: _Mask
    is_own: _Mask
    is_deleted: _Mask


@dataclass(frozen=True, slots=True)
class Settled:
    """Which hits take the row of their key, which it leaves, and the keys whose row is new in its partition."""

    takes: _Mask
    leaves: _Mask
    fresh: _Numbers


def settle(hits: Hits, found: Found, keys: _Numbers, *, moves: bool) -> Settled:
    """Send the one row of each of these `keys`, which are those of the hits and maybe more, to where it belongs."""
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
