"""Where the row of a key goes, by what is known of the slices that were found to have it."""

from __future__ import annotations

import numpy as np
import pytest

from tablekeeper.write.settle import Found, Hits, settle

__all__: list[str] = []

THERE, GONE, NEWER = "there", "gone", "newer"


def settled(*hits: tuple[str, bool], moves: bool, deleted: bool = False) -> tuple[list[int], list[int], bool]:
    """The slices that take the row of one key, those that it leaves, and whether it is new; a hit may be `is_own`."""
    count = len(hits)
    found = Found(
        is_there=np.array([state != GONE for state, _ in hits], bool),
        is_newer=np.array([state == NEWER for state, _ in hits], bool),
        is_own=np.array([is_own for _, is_own in hits], bool),
        is_deleted=np.full(count, deleted),
    )
    # A key before it, of which nothing is known, is not mixed up with it.
    keys = np.array([7])
    result = settle(Hits(np.full(count, 7), np.arange(count)), found, keys, moves=moves)
    return np.flatnonzero(result.takes).tolist(), np.flatnonzero(result.leaves).tolist(), bool(len(result.fresh))


@pytest.mark.parametrize(
    ("hits", "expected"),
    [
        ([], ([], [], True)),
        ([(THERE, False)], ([], [0], True)),
        ([(NEWER, False)], ([0], [], False)),
        ([(GONE, False)], ([], [0], True)),
        ([(GONE, True)], ([], [0], True)),
        ([(THERE, True), (THERE, False)], ([0], [1], False)),
        ([(GONE, True), (THERE, False)], ([], [0, 1], True)),
        ([(GONE, True), (NEWER, False)], ([1], [], False)),
        ([(THERE, True), (NEWER, False)], ([1], [0], False)),
        ([(GONE, False), (GONE, False)], ([], [0, 1], True)),
    ],
)
def test_a_row_that_moves(hits: list[tuple[str, bool]], expected: tuple[list[int], list[int], bool]) -> None:
    assert settled(*hits, moves=True) == expected


@pytest.mark.parametrize(
    ("hits", "expected"),
    [
        ([], ([], [], True)),
        ([(THERE, False)], ([0], [], False)),
        ([(NEWER, False)], ([0], [], False)),
        ([(GONE, False)], ([0], [], False)),
        ([(GONE, True), (THERE, False)], ([1], [], False)),
        ([(THERE, True), (THERE, False)], ([0, 1], [], False)),
        ([(GONE, False), (GONE, True)], ([0], [1], False)),
    ],
)
def test_a_row_that_stays(hits: list[tuple[str, bool]], expected: tuple[list[int], list[int], bool]) -> None:
    assert settled(*hits, moves=False) == expected


def test_a_row_that_is_a_deletion_stays_with_what_it_deletes() -> None:
    assert settled((THERE, False), (NEWER, True), moves=True, deleted=True) == ([0, 1], [], False)


def test_keys_are_joined_with_all_slices_that_have_them() -> None:
    hits = Hits.of(np.array([4, 1, 4, 1]), np.array([0, 2, 2, 2]), slice_count=3)
    assert (hits.keys.tolist(), hits.slices.tolist()) == ([1, 4, 4], [2, 0, 2])
    places, slices = hits.join(np.array([4, 3, 1, 4]))
    assert (places.tolist(), slices.tolist()) == ([0, 0, 2, 3, 3], [0, 2, 2, 0, 2])
