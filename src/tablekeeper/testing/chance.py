"""Seeded randomness: the only place of the simulator that draws numbers.

Whatever is drawn follows from text, so that leaving one actor out of a history changes nothing about the others.
"""

from __future__ import annotations

from random import Random

__all__ = ["Chance", "chance_of"]

Chance = Random


def chance_of(*parts: object) -> Chance:
    """The numbers that belong to these parts, the same in every process."""
    return Random("/".join(map(str, parts)))
