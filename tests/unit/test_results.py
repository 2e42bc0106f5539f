"""Results and listings as plain values."""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass, field

import pytest

from tablekeeper.model import CompletionTime, RequestedTime
from tablekeeper.model.results import Listing, Result


class Colour(enum.Enum):
    RED = "red"


@dataclass(frozen=True, slots=True)
class Done(Result):
    instant: RequestedTime
    completed_at: CompletionTime | None = None
    colour: Colour = Colour.RED
    seconds: float = 0.0
    files: tuple[str, ...] = ()
    by_partition: dict[str, tuple[str, ...]] = field(default_factory=dict)
    before: tuple[Done, ...] = ()


@dataclass(frozen=True, slots=True)
class DoneListing(Listing[Done]):
    done: tuple[Done, ...]


def test_a_result_becomes_plain_values_by_name() -> None:
    earlier = Done(RequestedTime("20261118100000000"))
    facts = Done(
        RequestedTime("20261118110000000"),
        CompletionTime("20261118110001000"),
        seconds=1.23456,
        files=("a", "b"),
        by_partition={"sf": ("a",)},
        before=(earlier,),
    ).to_dict()
    assert facts == {
        "instant": "20261118110000000",
        "completed_at": "20261118110001000",
        "colour": "red",
        "seconds": 1.235,
        "files": ["a", "b"],
        "by_partition": {"sf": ["a"]},
        "before": [earlier.to_dict()],
    }
    assert json.loads(json.dumps(facts)) == facts


def test_a_listing_is_counted_walked_through_and_looked_up() -> None:
    first, second = (Done(RequestedTime(f"2026111810000000{n}")) for n in range(2))
    listing = DoneListing((first, second))
    assert len(listing) == 2
    assert list(listing) == [first, second]
    assert listing[1] is second
    assert listing.to_dicts() == [first.to_dict(), second.to_dict()]
    with pytest.raises(IndexError):
        listing[2]
    assert not DoneListing(())
