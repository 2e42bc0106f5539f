"""All work of a write in bins; rows that many bins share are staged once more for that, sorted by bin."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from tablekeeper.engine.protocol import Engine
from tablekeeper.write.bins import Bin, plan_bins, restage_shares
from tablekeeper.write.context import WriteContext
from tablekeeper.write.plan import PlannedRows
from tablekeeper.write.routing import BinRows, RestageTask, restage_rows
from tablekeeper.write.staging import StagedBatch

__all__ = ["gather_bins"]


def gather_bins(engine: Engine, context: WriteContext, planned: Sequence[PlannedRows]) -> list[Bin]:
    """Bins that know where their rows lie."""
    binned = plan_bins(planned, parallelism=engine.parallelism)
    tasks = [
        (place, RestageTask(context, share, each.planned.routes, each.bin_of_work))
        for place, each in enumerate(binned)
        if each.needs_restaging and each.planned.routes is not None
        for share in restage_shares(each.planned)
    ]
    weights = [task.weight for _, task in tasks]
    restaged = engine.run(restage_rows, [task for _, task in tasks], label="gather rows", weights=weights)
    batches: dict[tuple[int, int], list[StagedBatch]] = defaultdict(list)
    for (place, _), found in zip(tasks, restaged, strict=True):
        for each in found:
            batches[place, each.bin].append(each.batch)
    bins: list[Bin] = []
    for place, these in enumerate(binned):
        for number, one in enumerate(these.bins):
            rows = BinRows(tuple(enumerate(batches[place, number]))) if these.needs_restaging else one.rows
            bins.append(replace(one, rows=rows))
    return bins
