"""The strategy named in a compaction or clustering plan: how its maker chose, and how to carry it out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["Strategy"]


@dataclass(frozen=True, slots=True)
class Strategy:
    """A Java class name, its parameters, and the version of this record."""

    class_name: str | None = None
    params: Mapping[str, str] = field(default_factory=dict)
    version: int | None = 1
