"""Dividing work among tasks."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

__all__ = ["balanced_shares"]


def balanced_shares(weights: Sequence[float], count: int) -> list[list[int]]:
    """The places of all weights in at most `count` shares of about the same weight, none of them empty.

    The heaviest come first, each into the share that is lightest so far.
    """
    shares: list[list[int]] = [[] for _ in range(count)]
    # What weighs nothing is spread by number.
    loads = [(0.0, number) for number in range(count)]
    for place in sorted(range(len(weights)), key=lambda place: -weights[place]):
        load, number = heapq.heappop(loads)
        shares[number].append(place)
        heapq.heappush(loads, (load + weights[place] + 1e-9, number))
    return [share for share in shares if share]
