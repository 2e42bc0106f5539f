"""Names of log files: `.<fileId>_<instant>.log.<version>_<writeToken>[.cdc]`.

The instant is the delta commit's requested time from table version 8 on, and the base file's
before that. A name that does not follow the pattern is not a log file: `decode_log_name`
answers None, so that listings can skip strangers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tablekeeper.errors import InvalidRequestError

__all__ = ["LogName", "decode_log_name", "encode_log_name"]

_PATTERN = re.compile(
    r"\.(?P<file_id>[^._/]+)_(?P<instant>[0-9]+)\.log\.(?P<version>[0-9]{1,18})"
    r"(?:_(?P<token>[0-9]+-[0-9]+-[0-9]+)(?P<cdc>\.cdc)?)?"
)


@dataclass(frozen=True, slots=True)
class LogName:
    """The parts of a log file name. `write_token` is empty in names of very old writers."""

    file_id: str
    instant: str
    version: int
    write_token: str
    is_cdc: bool = False


def encode_log_name(*, file_id: str, instant: str, version: int, write_token: str) -> str:
    """The file name for these parts; refuses parts that would not decode to themselves."""
    name = f".{file_id}_{instant}.log.{version}_{write_token}"
    expected = LogName(file_id=file_id, instant=instant, version=version, write_token=write_token)
    if decode_log_name(name) != expected:
        raise InvalidRequestError(
            f"{name!r} is no log file name. The file id takes letters, digits and `-`, the instant digits, "
            "the version a number, the write token three numbers joined by `-`."
        )
    return name


def decode_log_name(name: str) -> LogName | None:
    """The parts of a log file name (no directories), or None if `name` is not one."""
    match = _PATTERN.fullmatch(name)
    if match is None:
        return None
    return LogName(
        file_id=match["file_id"],
        instant=match["instant"],
        version=int(match["version"]),
        write_token=match["token"] or "",
        is_cdc=match["cdc"] is not None,
    )
