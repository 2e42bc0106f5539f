"""Which file slices a log compaction rewrites."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tablekeeper.config.service_settings import LogCompactionSettings
from tablekeeper.model import FileGroupId, FileSlice, Work
from tablekeeper.services.plans.service import Draft
from tablekeeper.services.plans.strategies import SettingsStrategy, leave_out_slices, split_planned

__all__ = ["LogCompactionStrategy"]

# What Java's plans name is who executes them.
_EXECUTOR = "org.apache.hudi.table.action.compact.LogCompactionExecutionHelper"


class LogCompactionStrategy(SettingsStrategy[LogCompactionSettings]):
    """Slices with many log blocks, or log files, whose logs are worth to be made into one.

    `blocks` counts the log blocks of a slice; one of our delta commits writes one log file with a block or two, so that
    log files are counted where nobody looks into them. What is below the threshold grows by being touched only.
    """

    is_incremental = True
    ranks_partitions = False

    def __init__(self, settings: LogCompactionSettings, *, blocks: Callable[[FileSlice], int] | None = None) -> None:
        super().__init__(settings)
        self._blocks = blocks or (lambda each: len(each.logs))

    @property
    def name(self) -> str:
        return "LogCompaction"

    @property
    def class_name(self) -> str:
        return _EXECUTOR

    def plan(self, slices: Sequence[FileSlice], *, planned: frozenset[FileGroupId]) -> Draft:
        """One piece of work a slice."""
        free, taken = split_planned([each for each in slices if each.logs], planned)
        bare = leave_out_slices((each for each in slices if not each.logs), reason="no log files", comes_back=False)
        least = self.settings.blocks_threshold
        enough = [each for each in free if len(each.logs) >= least or self._blocks(each) >= least]
        chosen = {each.group for each in enough}
        few = leave_out_slices(
            (each for each in free if each.group not in chosen),
            reason=f"less than {least} log blocks",
            comes_back=False,
        )
        return Draft(tuple(Work((each,)) for each in enough), (*bare, *taken, *few))
