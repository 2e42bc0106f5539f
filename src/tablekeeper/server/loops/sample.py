"""Stores one sample of the lake for every minute, for the plots of the overview.

The first instance takes it. Policies are parsed once per text, because most tables share theirs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from tablekeeper.server.decisions.freshness import judge_freshness
from tablekeeper.server.loops.context import LoopContext
from tablekeeper.server.model import Sample, Status
from tablekeeper.server.policy import DEFAULT_POLICY, Policy, parse_policy

__all__ = ["SampleLoop"]

_MINUTE_MS = 60_000
_BATCH = 5000


class SampleLoop:
    """Takes the sample of this minute, unless it is there."""

    def __init__(self, context: LoopContext) -> None:
        self._context = context

    def run_once(self) -> bool:
        """Whether this instance took it."""
        store = self._context.store
        now_ms = store.now_ms()
        minute = now_ms // _MINUTE_MS
        if store.has_sample(minute):
            return False
        counts = dict.fromkeys(Status, 0)
        for depth in store.queue_depths():
            counts[depth.status] += depth.operations
        freshness = judge_freshness(self._behind(), now_ms=now_ms)
        store.prune_samples(before_minute=minute - int(self._context.settings.timing.keep_finished_s // 60))
        return store.add_sample(
            Sample(
                minute=minute,
                waiting=counts[Status.PENDING],
                running=counts[Status.CLAIMED] + counts[Status.RUNNING],
                behind=freshness.behind,
                late=freshness.late,
                longest_behind_s=freshness.longest_behind_s,
            )
        )

    def _behind(self) -> Iterator[tuple[int, int | None]]:
        store = self._context.store
        defaults = {name: store.default_policy(name) for name in store.databases_with_policies()}
        targets: dict[tuple[str, str], int | None] = {}
        after = 0
        while page := store.tables_behind(after=after, limit=_BATCH):
            for table_id, db_name, policy, since_ms in page:
                if (db_name, policy) not in targets:
                    own: Policy = parse_policy(json.loads(policy))
                    targets[db_name, policy] = own.over(defaults.get(db_name, DEFAULT_POLICY)).fresh_within_s
                yield since_ms, targets[db_name, policy]
                after = table_id
