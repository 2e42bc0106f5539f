"""Looks for the seeds by which the simulator catches bugs on purpose, and keeps a table of them in the documentation.

`python -m tests.support.simulated_bugs` tries up to `MOST_SEEDS` for each bug. What was found last lies beside this
module; a seed stands for one version of the code, so that tests look for seeds again.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from tablekeeper.testing import History, Outcome, draw_history, play
from tablekeeper.testing.start import load_start
from tests.support.bugs_on_purpose import BUGS, Bug

__all__ = ["MOST_SEEDS", "PAGE", "SEEDS", "catch", "draw", "find_seed", "load_seeds"]

MOST_SEEDS = 400
SEEDS = Path(__file__).with_name("simulated_bugs.json")
"""The seed that caught each bug last."""

PAGE = Path(__file__).parents[2] / "docs" / "simulation.md"
_BEGIN = "<!-- bugs: python -m tests.support.simulated_bugs -->"
_END = "<!-- end of bugs -->"


def draw(found: Bug, seed: int) -> History:
    """The history of the seed that looks for the bug."""
    history = draw_history(seed, theme=found.theme, shapes=found.shapes)
    if found.repeats_tasks:
        history = replace(history, actors=tuple(replace(each, repeats_tasks=True) for each in history.actors))
    return history


def catch(found: Bug, seed: int) -> Outcome:
    """What comes of the seed with the bug. The table that it begins with is kept for others, and made without."""
    history = draw(found, seed)
    load_start(history.shape)
    with found.make():
        return play(history)


def find_seed(found: Bug, most: int = MOST_SEEDS) -> tuple[int, str] | None:
    """The first seed that catches the bug, and by which invariant; None if none does within so many."""
    for seed in range(most):
        outcome = catch(found, seed)
        if outcome.complaints:
            return seed, outcome.complaints[0].partition(":")[0]
    return None


def load_seeds() -> dict[str, tuple[int, str]]:
    """The seed that catches each bug, and the invariant that it breaks."""
    return {name: (seed, invariant) for name, (seed, invariant) in json.loads(SEEDS.read_text()).items()}


def main() -> None:
    """Look for a seed for each bug named, or for all whose seed is not known, and keep what was found."""
    parser = argparse.ArgumentParser(description="Find the first seed that catches each deliberate bug.")
    parser.add_argument("words", nargs="*", help="parts of names; without any, the bugs without a seed")
    parser.add_argument("--most", type=int, default=MOST_SEEDS, help="seeds for each bug")
    arguments = parser.parse_args()
    known = load_seeds()
    words = arguments.words
    for name in [each for each in BUGS if any(word in each for word in words) or (not words and each not in known)]:
        caught = find_seed(BUGS[name], arguments.most)
        sys.stdout.write(f"{name}: {caught or 'NOT CAUGHT'}\n")
        sys.stdout.flush()
        if caught is not None:
            known = {**load_seeds(), name: caught}
            SEEDS.write_text(json.dumps({each: known[each] for each in BUGS if each in known}, indent=1) + "\n")
    write_table(load_seeds())


def write_table(seeds: Mapping[str, tuple[int, str]]) -> None:
    """Put the bugs, and how many seeds each takes, into the documentation."""
    rows = [
        f"| {name} | {found.theme} | {seeds[name][0] + 1} | {seeds[name][1]} |"
        for name, found in BUGS.items()
        if name in seeds
    ]
    head = ["| bug | theme of the histories | seeds until it is caught | by |", "|---|---|---|---|"]
    text = PAGE.read_text("utf-8")
    before, _, rest = text.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    PAGE.write_text("\n".join([before + _BEGIN, *head, *rows, _END + after]), "utf-8")


if __name__ == "__main__":
    main()
