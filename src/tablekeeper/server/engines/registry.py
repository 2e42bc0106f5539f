"""Engines by name: those of this package and those that other packages bring by entry point."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import cast

from tablekeeper.errors import InvalidRequestError
from tablekeeper.server.engines.arrow import make_arrow
from tablekeeper.server.engines.flink import make_flink
from tablekeeper.server.engines.hudi_java import make_hudi_java
from tablekeeper.server.engines.process import EngineContext
from tablekeeper.server.engines.protocol import Executor
from tablekeeper.server.engines.spark_submit import make_spark_submit
from tablekeeper.server.engines.warm import make_local

__all__ = ["Engines", "engine_names"]

_GROUP = "tablekeeper.engines"
_OURS: Mapping[str, Callable[[EngineContext], Executor]] = {
    "arrow": make_arrow,
    "flink": make_flink,
    "hudi-java": make_hudi_java,
    "local": make_local,
    "spark-submit": make_spark_submit,
}
# What clients call engines, in any case.
_ALIASES = {"": "", "spark": ""}
_OPTIONS = frozenset(
    {"flink_address", "flink_driver_bytes", "flink_python", "hudi_bundle", "hudi_master", "hudi_python", "spark_submit"}
)


def engine_names() -> list[str]:
    """All names that can be asked for."""
    return sorted({*_OURS, *(each.name for each in entry_points(group=_GROUP))})


class Engines:
    """The engines of one instance, made when they are first asked for. `default` serves requests for plain Spark."""

    def __init__(self, context: EngineContext, default: str) -> None:
        self._context = context
        self.default = default
        self._made: dict[str, Executor] = {}
        _refuse_unknown_options(context.options or {})
        self.find(default)

    def find(self, name: str) -> Executor:
        """The engine of this name, in any case; the default one for "" and "spark"."""
        word = name.strip().lower()
        chosen = _ALIASES.get(word, word) or self.default
        if chosen not in self._made:
            self._made[chosen] = self._make(chosen)
        return self._made[chosen]

    def close(self) -> None:
        for engine in self._made.values():
            engine.close()

    def _make(self, name: str) -> Executor:
        if name in _OURS:
            return _OURS[name](self._context)
        for point in entry_points(group=_GROUP, name=name):
            return cast(Executor, point.load()(self._context))
        raise InvalidRequestError(f"there is no engine {name[:60]!r}: use one of {', '.join(engine_names())}")


def _refuse_unknown_options(given: Mapping[str, str]) -> None:
    unknown = sorted(set(given) - _OPTIONS)
    # Engines of other packages have options that nobody here knows.
    if unknown and set(engine_names()) == set(_OURS):
        raise InvalidRequestError(
            f"no engine has the option {', '.join(unknown)}: there is {', '.join(sorted(_OPTIONS))}"
        )
