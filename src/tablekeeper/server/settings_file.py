"""Limits and times of the service from a TOML file: settings that are too many for a command line.

    [limits]
    slots = 8
    default_owner_limit = 4
    queue_limits = { nightly = 2 }

    [timing]
    look_max_s = 900

Unknown names are refused.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from tablekeeper.errors import InvalidRequestError
from tablekeeper.server.settings import Limits, Timing

__all__ = ["load_settings_file", "parse_settings"]

_MOST = 10**12


def load_settings_file(path: Path) -> tuple[Limits, Timing]:
    """The settings in the file, and the defaults of all others."""
    try:
        given = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidRequestError(f"{path}: cannot be read as TOML ({error})") from error
    return parse_settings(given, source=str(path))


def parse_settings(given: Mapping[str, Any], *, source: str) -> tuple[Limits, Timing]:
    """The same from values that have been read."""
    _refuse_unknown(given, ("limits", "timing"), source)
    return (
        Limits(**_section(given, "limits", Limits, source)),
        Timing(**_section(given, "timing", Timing, source)),
    )


def _section(given: Mapping[str, Any], name: str, made: type[Limits] | type[Timing], source: str) -> dict[str, Any]:
    section = given.get(name, {})
    if not isinstance(section, Mapping):
        raise InvalidRequestError(f"{source}: {name} is a table of settings, [{name}]")
    defaults = {each.name: getattr(made(), each.name) for each in fields(made)}
    _refuse_unknown(section, defaults, f"{source}, [{name}]")
    return {key: _checked(value, defaults[key], f"{source}, [{name}]: {key}") for key, value in section.items()}


def _refuse_unknown(given: Mapping[str, Any], known: Any, source: str) -> None:
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise InvalidRequestError(f"{source}: {', '.join(unknown)} is not known. There is {', '.join(sorted(known))}.")


def _checked(value: Any, default: Any, what: str) -> Any:
    """A value of the kind of its default: a mapping of numbers, or a number that is not negative."""
    if isinstance(default, Mapping):
        if not isinstance(value, Mapping):
            raise InvalidRequestError(f"{what} is a table of numbers by name")
        return {str(key): _checked(each, 0, f"{what}.{key}") for key, each in value.items()}
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= _MOST or (isinstance(default, int) and not isinstance(value, int)):
        raise InvalidRequestError(f"{what} is a {'whole number' if isinstance(default, int) else 'number'} from 0 on")
    return type(default)(value)
