"""A process sleeps past its lease and its heartbeat at any of its changing calls, and goes on: it never hurts.

While it sleeps another process writes on the same keys, executes what waits, compacts, clusters and cleans. Whatever
the sleeper does then, and wherever it slept,

- the rows are those of the commits on the timeline, in the order in which they completed, each exactly once;
- what the sleeper and the others were told is so: success means that it is there, an error that nothing of it is;
- no instant has two completed files, and listing and metadata table agree;
- a clean and the doctor leave nothing pending and no stray file.

Naps alternate between a store that keeps late changes out and one that cannot, as object stores are.
The engine runs every task once, or twice with the attempt that does not count coming in late: while others act, or
after everything is over. By default a part of the calls is tried, always the same one and always the one that
publishes the commit; TABLEKEEPER_ALL_SLEEPS=1 tries all, before and after each call.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from zlib import crc32

import pytest

from tests.support.sleeper import Nap
from tests.support.sleeper_cases import CASES, prepare
from tests.support.sleeper_trial import try_sleeper
from tests.support.step_faults import WRITES

__all__: list[str] = []

ALL = os.environ.get("TABLEKEEPER_ALL_SLEEPS") == "1"
STRIDE = 12


@pytest.fixture(scope="module", autouse=True)
def forgotten() -> Iterator[None]:
    yield
    for name in CASES:
        prepare(name).world.forget()
    prepare.cache_clear()


def naps(name: str, calls: list[tuple[str, str]]) -> list[Nap]:
    """Where the process of this case sleeps."""
    steps = [number for number, (kind, _) in enumerate(calls, 1) if kind in WRITES]
    if ALL:
        return [
            Nap(step, after, renewals_first)
            for step in steps
            for after in (False, True)
            for renewals_first in (False, True)
        ]
    offset = crc32(name.encode()) % min(STRIDE, len(steps))
    chosen = [
        Nap(step, after=number % 2 == 1, renewals_first=number % 4 > 1)
        for number, step in enumerate(steps)
        if number % STRIDE == offset
    ]
    # The step that others see: a completed instant, where the case has one.
    last = [step for step in steps if is_completion(*calls[step - 1])][-1:]
    return [*chosen, *(Nap(step) for step in last)]


def is_completion(kind: str, path: str) -> bool:
    folder, _, name = path.rpartition("/")
    return kind == "put_if_absent" and folder == ".hoodie/timeline" and "_" in name


@pytest.mark.parametrize("repeats", [False, True], ids=["once", "repeated"])
@pytest.mark.parametrize("name", CASES)
def test_a_sleeper_never_hurts(name: str, repeats: bool) -> None:
    undisturbed = try_sleeper(name, None, repeats=repeats)
    assert undisturbed.faults == []
    assert undisturbed.outcome == "success"
    chosen = naps(f"{name} {repeats}", undisturbed.calls)
    assert chosen
    on_objects = try_sleeper(name, None, repeats=repeats, has_scopes=False)
    assert on_objects.faults == []
    for number, nap in enumerate(chosen):
        for has_scopes in (True, False) if ALL else ((number + repeats) % 2 == 0,):
            trial = try_sleeper(name, nap, repeats=repeats, early=nap.step % 3 == 0, has_scopes=has_scopes)
            calls = (undisturbed if has_scopes else on_objects).calls
            where = " ".join(calls[min(nap.step, len(calls)) - 1])
            store = "" if has_scopes else ", on a store without scopes"
            assert trial.faults == [], f"{name}: {nap}, {where}{store}; {trial.outcome}; the others: {trial.log}"
