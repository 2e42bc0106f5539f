"""How a clustering lays rows out, and the names under which a plan carries that to its executor.

Java's executor reads the sort columns from the plan and everything else from its own settings; we write the rest
into the plan as well, under the names of those settings, so that our executors need none.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from tablekeeper.errors import CorruptTableError, InvalidRequestError

__all__ = ["ClusteringOrder", "Layout", "OutputLayout"]

_SORT_COLUMNS = "hoodie.clustering.plan.strategy.sort.columns"
_LAYOUT = "hoodie.layout.optimize.strategy"
_TARGET_FILE_BYTES = "hoodie.clustering.plan.strategy.target.file.max.bytes"
_EXECUTION = "org.apache.hudi.client.clustering.run.strategy."
_SORT_AND_SIZE = f"{_EXECUTION}SparkSortAndSizeExecutionStrategy"
_SINGLE_FILE_SORT = f"{_EXECUTION}SparkSingleFileSortExecutionStrategy"


class Layout(enum.Enum):
    """How several columns share the order: one after the other, or all at once along a curve that fills space."""

    LINEAR = "LINEAR"
    ZORDER = "ZORDER"
    HILBERT = "HILBERT"

    @classmethod
    def named(cls, name: str) -> Layout:
        """By Hudi's name or the shorter ones that people use: sort, zorder, hilbert."""
        for layout in cls:
            if name.upper().replace("-", "") in (layout.value, {"LINEAR": "SORT"}.get(layout.value)):
                return layout
        raise InvalidRequestError(f"{name!r} is no order of rows: use 'sort', 'zorder' or 'hilbert'")


@dataclass(frozen=True, slots=True)
class ClusteringOrder:
    """The columns that rows are ordered by, the most important first; without any they stay as they come."""

    columns: tuple[str, ...] = ()
    layout: Layout = Layout.LINEAR


@dataclass(frozen=True, slots=True)
class OutputLayout:
    """What an executor makes of the rows of a clustering group.

    A new file is begun at `target_file_bytes`, unless all rows go into a `single_file`.
    """

    order: ClusteringOrder = ClusteringOrder()
    target_file_bytes: int = 1 << 30
    single_file: bool = False

    @property
    def class_name(self) -> str:
        """Java's class that does the same, as plans name it."""
        return _SINGLE_FILE_SORT if self.single_file else _SORT_AND_SIZE

    def to_params(self) -> dict[str, str]:
        """As parameters of the plan's strategy."""
        params = {_LAYOUT: self.order.layout.value, _TARGET_FILE_BYTES: str(self.target_file_bytes)}
        if self.order.columns:
            params[_SORT_COLUMNS] = ",".join(self.order.columns)
        return params

    def as_planned(self, *, class_name: str | None, params: Mapping[str, str], file: str) -> OutputLayout:
        """What the plan in `file` says; where it is silent, as Java's plans are about all but the columns, as here."""
        columns = params.get(_SORT_COLUMNS, "")
        layout, target = params.get(_LAYOUT), params.get(_TARGET_FILE_BYTES)
        if target is not None and not (target.isascii() and target.isdigit() and int(target) > 0):
            raise CorruptTableError(file=file, reason=f"{_TARGET_FILE_BYTES}={target!r} is no number of bytes")
        if layout is not None and layout not in Layout.__members__:
            raise CorruptTableError(
                file=file, reason=f"{_LAYOUT}={layout!r} is none of {', '.join(Layout.__members__)}"
            )
        return OutputLayout(
            order=ClusteringOrder(
                tuple(name.strip() for name in columns.split(",") if name.strip()),
                Layout[layout] if layout is not None else self.order.layout,
            ),
            target_file_bytes=int(target) if target is not None else self.target_file_bytes,
            single_file=class_name == _SINGLE_FILE_SORT,
        )
