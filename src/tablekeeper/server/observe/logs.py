"""The log of an instance: lines for people, or one JSON object a line for programs.

A message about an operation carries its number as `operation_id`, so that everything about one can be picked out across
instances. Messages are one line whatever a table is called: what would move a terminal's cursor is escaped.
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime

__all__ = ["JsonLines", "PlainLines", "start_logging"]

_PLAIN = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_EXTRA = ("operation_id", "table_id", "instance_id")


class JsonLines(logging.Formatter):
    """One JSON object a line: `at`, `level`, `logger`, `message`, the numbers above where known, `trace` of errors."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields.update({name: value for name in _EXTRA if (value := getattr(record, name, None)) is not None})
        if record.exc_info:
            fields["trace"] = self.formatException(record.exc_info)
        return json.dumps(fields, default=str)


class PlainLines(logging.Formatter):
    """A line for people."""

    def __init__(self) -> None:
        super().__init__(_PLAIN)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (the name that logging calls)
        record.message = "".join(
            each if each.isprintable() else each.encode("unicode_escape").decode() for each in record.message
        )
        return super().formatMessage(record)


def start_logging(*, as_json: bool, is_verbose: bool) -> None:
    """Write to standard error from now on."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if as_json else PlainLines())
    logging.basicConfig(level=logging.DEBUG if is_verbose else logging.INFO, handlers=[handler], force=True)
