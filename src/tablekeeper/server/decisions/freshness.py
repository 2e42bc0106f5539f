"""How far a lake is behind its freshness targets. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["Freshness", "judge_freshness"]


@dataclass(frozen=True, slots=True)
class Freshness:
    """How many tables have commits that wait for a compaction, how many missed their target, and the longest wait."""

    behind: int = 0
    late: int = 0
    longest_behind_s: int = 0


def judge_freshness(behind: Iterable[tuple[int, int | None]], *, now_ms: int) -> Freshness:
    """From the moment since when each table is behind, and its target in seconds if it has one."""
    tables = late = longest_s = 0
    for since_ms, target_s in behind:
        behind_s = max(0, now_ms - since_ms) // 1000
        tables += 1
        late += target_s is not None and behind_s > target_s
        longest_s = max(longest_s, behind_s)
    return Freshness(tables, late, longest_s)
