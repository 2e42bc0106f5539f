"""A setting is declared once: its names, type, default, bounds and what it does.

Most settings are fields of a class that derives from `Settings`, declared by `setting`. Their defaults, reading them
from options and refusing what is out of bounds follow from that, and so do the list of all options (`options.py`), its
page in the documentation and `tablekeeper options`. Names are Hudi's where Hudi has one, so that settings of Java jobs
can be reused as they are, and begin with `tablekeeper.` where it has none. Options are texts by name; an empty text
counts as not given.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field, fields
from functools import cache
from typing import Any, ClassVar, Self, TypeVar

from tablekeeper.errors import InvalidRequestError

__all__ = ["Setting", "Settings", "field_of", "group", "named", "regex", "setting", "text_of", "words"]

E = TypeVar("E", bound=enum.Enum)

# A Java long; a float beyond it, an infinity or not-a-number is nobody's setting.
_LARGEST = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Setting:
    """A declared setting. Where its `name` is not given its `older` name counts; numbers below `least` are refused.

    Its text has to be of `takes`, which is the type of the default unless told. `parse` reads it where that is not
    enough; enums are read by their values and tuples between commas. `shown` is the default as a text, if not plain.
    """

    name: str
    default: Any
    doc: str
    _: KW_ONLY
    takes: type | None = None
    least: int | None = None
    older: str = ""
    parse: Callable[[str], Any] | None = None
    shown: str | None = None

    @property
    def kind(self) -> type:
        plain = type(self.default) if isinstance(self.default, bool | int | float) else str
        return self.takes or plain

    @property
    def default_text(self) -> str | None:
        return self.shown or text_of(self.default)

    def given(self, options: Mapping[str, str]) -> str | None:
        """Its text, None if it is not given."""
        return options.get(self.name) or (options.get(self.older) if self.older else None) or None

    def read(self, options: Mapping[str, str]) -> Any:
        """Its value, which is the default if it is not given."""
        text = self.given(options)
        if text is None:
            return self.default
        try:
            match self.default:
                case _ if self.parse is not None:
                    return self.parse(text)
                case enum.Enum():
                    return named(type(self.default))(text)
                case tuple():
                    return words(text)
            return self.plain_value_of(text)
        except ValueError as error:
            name = self.name if options.get(self.name) else self.older
            raise InvalidRequestError(f"option {name}: {error}") from error

    def plain_value_of(self, text: str) -> Any:
        """The text as its `kind`, whatever it means."""
        try:
            text.encode()
            if self.kind is bool:
                return {"true": True, "false": False}[text.lower()]
            value = self.kind(text)
            if self.kind is not str and not abs(value) <= _LARGEST:
                raise ValueError("out of range")
        except (KeyError, ValueError) as error:
            raise InvalidRequestError(f"option {self.name}: {text!r} is not a valid {self.kind.__name__}") from error
        return value

    def refuse_out_of_bounds(self, value: Any) -> None:
        """Raise `InvalidRequestError` if the value is below the least."""
        if self.least is not None and value is not None and value < self.least:
            raise InvalidRequestError(f"option {self.name}: {value} is too small, the least is {self.least}. Raise it.")


def setting(name: str, default: Any, doc: str, **more: Any) -> Any:
    """A field of a class of settings; the arguments are those of `Setting`."""
    return field_of(Setting(name, default, doc, **more))


def field_of(declared: Setting) -> Any:
    """A field for a setting that is declared elsewhere, because several classes have it."""
    return field(default=declared.default, metadata={"setting": declared})


def group(kind: type[Settings]) -> Any:
    """A field that holds settings of a class of their own."""
    return field(default_factory=kind, metadata={"group": kind})


def named(kind: type[E]) -> Callable[[str], E]:
    """Reads a member of an enum by its value, in upper or lower case."""

    def parse(text: str) -> E:
        for member in kind:
            if member.value.upper() == text.strip().upper():
                return member
        known = ", ".join(member.value for member in kind)
        raise ValueError(f"{text!r} is not known. Use one of {known}.")

    return parse


def words(text: str) -> tuple[str, ...]:
    """The parts of a text between commas, without the empty ones."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def regex(text: str) -> str:
    """A regular expression, as its text."""
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"{text!r} is no regular expression ({error}). Correct it.") from None
    return text


def text_of(value: Any) -> str | None:
    """A value as the text that an option has; None for nothing."""
    match value:
        case bool():
            return str(value).lower()
        case float():
            return f"{value:f}".rstrip("0").rstrip(".")
        case enum.Enum():
            return str(value.value)
        case tuple():
            return ",".join(text_of(each) or "" for each in value) or None
        case None:
            return None
    return str(value)


@dataclass(frozen=True, slots=True)
class Settings:
    """Values that belong together, each declared by `setting`; `besides` are settings that are no fields.

    Subclasses refuse in `_check` what does not go together.
    """

    besides: ClassVar[tuple[Setting, ...]] = ()

    def __post_init__(self) -> None:
        for name, declared in self._declared():
            declared.refuse_out_of_bounds(getattr(self, name))
        self._check()

    def _check(self) -> None:
        return

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Self:
        """From options by name; the defaults where they say nothing."""
        return cls(**cls.read(options))

    @classmethod
    def read(cls, options: Mapping[str, str]) -> dict[str, Any]:
        """The values of the fields that are settings or groups of them."""
        values = {name: declared.read(options) for name, declared in cls._declared()}
        return values | {name: kind.from_options(options) for name, kind in cls._marked("group")}

    @classmethod
    def setting_of(cls, field_name: str) -> Setting:
        """The setting that a field holds."""
        return dict(cls._declared())[field_name]

    @classmethod
    def key(cls, field_name: str) -> str:
        """The name of the option that a field holds."""
        return cls.setting_of(field_name).name

    @classmethod
    def all_settings(cls) -> Iterator[Setting]:
        """Every setting that is declared here, older names after the newer ones."""
        for declared in (*(each for _, each in cls._declared()), *cls.besides):
            yield declared
            if declared.older:
                yield Setting(declared.older, None, f"Older name of {declared.name}.", takes=declared.kind)

    def texts(self, *field_names: str) -> dict[str, str]:
        """Fields as options, those without a value left out."""
        found = {self.key(name): text_of(getattr(self, name)) for name in field_names}
        return {name: text for name, text in found.items() if text is not None}

    @classmethod
    def _declared(cls) -> Iterable[tuple[str, Setting]]:
        return cls._marked("setting")

    @classmethod
    def _marked(cls, mark: str) -> Iterable[tuple[str, Any]]:
        """The fields that carry a mark, with what it says."""
        # mypy takes the hash of a class for that of its instances.
        kind: Any = cls
        return _marked_fields(kind, mark)


@cache
def _marked_fields(kind: Any, mark: str) -> tuple[tuple[str, Any], ...]:
    # A write reads some fifty settings.
    return tuple((each.name, each.metadata[mark]) for each in fields(kind) if mark in each.metadata)
