"""Writers and table services whose storage calls are shuffled by a seed, some dying, failing or sleeping on the way."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.support.service_sim import Shape, play

__all__: list[str] = []

BUCKETS = {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "2"}
TIDIERS = ("cancel", "clean", "archive")
SHAPES = {
    "mor": Shape("mor", ("write", "write", "compaction", "log_compaction", "clustering", *TIDIERS)),
    "mor_bucket": Shape("mor", ("write", "write", "compaction", "compaction", "log_compaction", *TIDIERS), BUCKETS),
    "cow": Shape("cow", ("write", "write", "clustering", "clustering", *TIDIERS)),
    "mor_metadata_table": Shape(
        "mor", ("write", "write", "compaction", "clustering", "cancel", "clean"), metadata=True
    ),
}
SEEDS = range(10)


@pytest.mark.parametrize("name", SHAPES)
def test_whatever_the_order_of_their_calls_services_and_writers_leave_the_rows_of_the_commits(name: str) -> None:
    counts: Counter[str] = Counter()
    for seed in SEEDS:
        story = play(seed, SHAPES[name])
        assert story.faults == [], f"seed {seed}"
        counts += story.counts
    assert counts["write committed"] > 30
    assert counts["clustering completed"] + counts["compaction completed"] > 5
    assert counts["cancel removed"] > 0
