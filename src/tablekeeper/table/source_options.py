"""The options of Spark's own read and write syntax: texts by name, checked and typed.

Names are those of the arguments of `Table.read`, `Table.changes` and `Table.create`. Lists are written with
commas. Hudi's settings go by their own names, and settings of the store by `storage.` and their name. An unknown
name is refused, so that a misspelt option is never ignored. Java's names for what to read and what to do count as ours;
its names for what the table is go on to `Table.create` and `Table.open`, as do all of Hudi's settings.

`CREATE TABLE … USING tablekeeper` hands over all that Spark's catalog knows about the new table: its owner, its
comment, its properties, and the options that the user gave, repeated with the prefix `option.`. `catalog_options` finds
the user's options among them.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field

from tablekeeper.config.java_keys import READ_NAMES, WRITE_NAMES, Claim
from tablekeeper.config.options import Options, is_known_option
from tablekeeper.errors import InvalidRequestError
from tablekeeper.model import Operation
from tablekeeper.table.claims import claimed_text

__all__ = ["ReadOptions", "WriteOptions", "catalog_options"]

_STORAGE = "storage."
_CATALOG_OPTION = "option."
# Only the catalog gives this: none of our options has this name.
_CATALOG_MARK = "provider"
_SECRET = ("secret", "token", "password", "key", "credential", "sas")
_READ = ("path", "columns", "where", "as_of", "since", "until", "mode", "meta_columns", "parallelism", "push_filters")
_WRITE = ("path", "operation", "name", "key", "partition_by", "ordering", "table_type")
_APPENDING = (Operation.UPSERT, Operation.INSERT, Operation.BULK_INSERT, Operation.DELETE)
_REPLACING = (Operation.INSERT_OVERWRITE_TABLE, Operation.INSERT_OVERWRITE)


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What to read, and how: in so many tasks (0: as the table's size suggests), taking over Spark's filters or not."""

    path: str
    columns: tuple[str, ...] | None = None
    where: str | None = None
    as_of: str | None = None
    since: str | None = None
    until: str | None = None
    mode: str = "snapshot"
    meta_columns: bool = False
    parallelism: int = 0
    push_filters: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)
    storage: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_incremental(self) -> bool:
        """Whether it asks for changes instead of for the table."""
        return self.since is not None or self.until is not None

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> ReadOptions:
        """From the texts given; `InvalidRequestError` names the first that is wrong."""
        known, settings, storage = _sorted(_translated(given, READ_NAMES), _READ)
        options = cls(
            path=_path(known),
            columns=_names(known.get("columns")) or None,
            where=known.get("where"),
            as_of=known.get("as_of"),
            since=known.get("since"),
            until=known.get("until"),
            mode=known.get("mode", "snapshot"),
            meta_columns=_flag("meta_columns", known.get("meta_columns", "false")),
            parallelism=_count("parallelism", known.get("parallelism", "0")),
            push_filters=_flag("push_filters", known.get("push_filters", "false")),
            settings=settings,
            storage=storage,
        )
        if options.is_incremental and (options.as_of is not None or options.mode != "snapshot"):
            raise InvalidRequestError("since and until do not go together with as_of and mode: leave one pair out")
        return options


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """What to write, and how to create the table if it does not exist."""

    path: str
    operation: Operation
    name: str
    key: tuple[str, ...] = ()
    partition_by: tuple[str, ...] = ()
    ordering: tuple[str, ...] = ()
    table_type: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    storage: Mapping[str, str] = field(default_factory=dict)

    @property
    def makes_tables(self) -> bool:
        """Whether it says enough to create a table."""
        return bool(self.key or claimed_text(Options(self.settings).claims, Claim.KEY))

    @classmethod
    def parse(cls, given: Mapping[str, str], *, overwrite: bool) -> WriteOptions:
        """From the texts given and the save mode; `InvalidRequestError` names the first that is wrong."""
        known, settings, storage = _sorted(_translated(given, WRITE_NAMES), _WRITE)
        path = _path(known)
        return cls(
            path=path,
            operation=_operation(known.get("operation"), overwrite=overwrite),
            name=known.get("name") or _claimed_name(settings) or path.rstrip("/").rpartition("/")[2],
            key=_names(known.get("key")),
            partition_by=_names(known.get("partition_by")),
            ordering=_names(known.get("ordering")),
            table_type=known.get("table_type"),
            settings=settings,
            storage=storage,
        )


def catalog_options(given: Mapping[str, str]) -> dict[str, str] | None:
    """The read options of a table that is being made in Spark's catalog; None if these come from elsewhere.

    Options for writes may stand among the user's and do not concern reads. Options that look like credentials are
    refused: the catalog would show them to everybody who can describe the table.
    """
    if _CATALOG_MARK not in given:
        return None
    prefix = len(_CATALOG_OPTION)
    options = {name[prefix:]: text for name, text in given.items() if name.startswith(_CATALOG_OPTION)}
    for name in options:
        if name.startswith(_STORAGE) and any(word in name.lower() for word in _SECRET):
            raise InvalidRequestError(
                f"option {name!r} does not belong into a catalog, where others can read it. "
                "Give credentials by the environment of Spark's driver and executors, or read with spark.read.format."
            )
    path = options.get("path") or given.get("path") or given.get("location") or ""
    only_for_writes = set(_WRITE) - set(_READ)
    return {**{name: text for name, text in options.items() if name not in only_for_writes}, "path": path}


def _sorted(given: Mapping[str, str], names: tuple[str, ...]) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    """Our options, Hudi's settings and the store's."""
    known: dict[str, str] = {}
    settings: dict[str, str] = {}
    storage: dict[str, str] = {}
    for name, value in given.items():
        if name in names:
            known[name] = value
        elif name.startswith(_STORAGE):
            storage[name.removeprefix(_STORAGE)] = value
        elif is_known_option(name) or "." in name:
            settings[name] = value
        else:
            near = difflib.get_close_matches(name, names, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else f"There are {', '.join(names)}."
            raise InvalidRequestError(f"unknown option {name!r}. {hint}")
    # Wrong ones are refused here, before Spark starts a task.
    Options(settings)
    return known, settings, storage


def _translated(given: Mapping[str, str], names: Mapping[str, str]) -> dict[str, str]:
    """The options with Java's names for ours replaced; `InvalidRequestError` if both are given and differ."""
    translated = {name: text for name, text in given.items() if name not in names}
    for java, ours in names.items():
        text = given.get(java)
        if text is not None and translated.setdefault(ours, text) != text:
            raise InvalidRequestError(
                f"options {java}={text!r} and {ours}={translated[ours]!r} contradict each other. Leave one of them out."
            )
    return translated


def _claimed_name(settings: Mapping[str, str]) -> str | None:
    return claimed_text(Options(settings).claims, Claim.NAME)


def _path(known: Mapping[str, str]) -> str:
    if not known.get("path"):
        raise InvalidRequestError(
            "no path: give it to load() or save(), one path, for example '/lake/trips'. Spark does not hand on the "
            "path of a table of its catalog: to read one, make it without a list of columns, and to write to it, "
            "repeat the path, as in INSERT INTO trips WITH (path = '/lake/trips') SELECT …"
        )
    return known["path"]


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip()) if text else ()


def _flag(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise InvalidRequestError(f"option {name}: {text!r} is not true or false")
    return text.lower() == "true"


def _count(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise InvalidRequestError(f"option {name}: {text!r} is not a whole number from 0 on")
    return int(text)


def _operation(text: str | None, *, overwrite: bool) -> Operation:
    allowed = _REPLACING if overwrite else _APPENDING
    if text is None:
        return allowed[0]
    for operation in allowed:
        if operation.value == text.upper():
            return operation
    mode = "overwrite" if overwrite else "append"
    names = ", ".join(operation.value.lower() for operation in allowed)
    raise InvalidRequestError(f"operation {text!r} does not go with mode {mode!r}, which takes one of {names}")
