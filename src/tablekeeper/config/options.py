"""Every option a caller may pass, in one registry; an unknown one is refused with the nearest name.

Settings of Java jobs that are no options (`config.java_keys`) are told apart: what they say about the table is left to
be compared with it, and what has no meaning here is left to be named.

Options carry Hudi's names where Hudi has one, so that settings of Java jobs can be reused as they
are, and names that begin with `tablekeeper.` where it has none. Values are strings, as in Hudi.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from tablekeeper.config.archive_settings import ArchiveSettings
from tablekeeper.config.clean_settings import CleanSettings
from tablekeeper.config.concurrency_settings import (
    ConcurrencySettings,
    ConflictSettings,
    EarlyDetection,
    HeartbeatSettings,
    LockSettings,
    ZookeeperSettings,
)
from tablekeeper.config.hosting_settings import HostingSettings
from tablekeeper.config.java_keys import CLAIMS, IDLE, REFUSED, RENAMED, is_idle
from tablekeeper.config.keys import (
    BLOCKS_SPECULATION,
    INDEX_DROP,
    INDEX_TYPE,
    KEY_GENERATOR,
    MERGE_MODE,
    SERVICES_ENABLED,
    WIDEN_TO_STRING,
)
from tablekeeper.config.lifecycle_settings import LifecycleSettings
from tablekeeper.config.metadata_settings import MetadataSettings, RecordIndexSettings
from tablekeeper.config.registry import Setting, Settings
from tablekeeper.config.service_settings import ClusteringSettings, CompactionSettings, LogCompactionSettings
from tablekeeper.config.write_settings import WriteSettings
from tablekeeper.errors import InvalidRequestError, UnsupportedFeatureError

__all__ = ["OPTIONS", "Options", "is_known_option"]

_CLASSES: tuple[type[Settings], ...] = (
    WriteSettings,
    LockSettings,
    ZookeeperSettings,
    HeartbeatSettings,
    ConflictSettings,
    ConcurrencySettings,
    EarlyDetection,
    ArchiveSettings,
    CleanSettings,
    CompactionSettings,
    LogCompactionSettings,
    ClusteringSettings,
    LifecycleSettings,
    MetadataSettings,
    RecordIndexSettings,
    HostingSettings,
)

_SWITCHES = (
    Setting(
        INDEX_DROP,
        False,
        "Drop an index of the metadata table (such as an expression index) that an action would leave wrong.",
    ),
    Setting(
        BLOCKS_SPECULATION,
        True,
        "Refuse to change the table while `spark.speculation` is on, as Java does; false changes it anyway.",
    ),
    Setting(
        WIDEN_TO_STRING,
        False,
        "Number columns become strings permanently if rows have strings; key, ordering and partition columns never do.",
    ),
    Setting(
        SERVICES_ENABLED,
        True,
        "Services after writes, if options enable them; false turns all of them off.",
    ),
)

_OF_THE_TABLE = (
    Setting("hoodie.database.name", None, "Database that the table belongs to."),
    Setting("hoodie.datasource.write.hive_style_partitioning", False, "Partition directories are named `field=value`."),
    Setting(
        "hoodie.datasource.write.partitionpath.urlencode", False, "Special characters in partition values are escaped."
    ),
    Setting(MERGE_MODE, None, "EVENT_TIME_ORDERING (with ordering fields) or COMMIT_TIME_ORDERING."),
    Setting(KEY_GENERATOR, None, "SIMPLE, COMPLEX, TIMESTAMP, CUSTOM or NON_PARTITION; inferred by default."),
    Setting("hoodie.table.timeline.timezone", "UTC", "Zone of instant times: UTC or LOCAL."),
    Setting("hoodie.keygen.timebased.timestamp.type", None, "How a timestamp-based partition field is read."),
    Setting("hoodie.keygen.timebased.input.dateformat", None, "Date formats of the partition field, for DATE_STRING."),
    Setting(
        "hoodie.keygen.timebased.input.dateformat.list.delimiter.regex", ",", "Separator of several input formats."
    ),
    Setting("hoodie.keygen.timebased.output.dateformat", None, "Date format of the partition path."),
    Setting("hoodie.keygen.timebased.input.timezone", None, "Zone of the input dates."),
    Setting("hoodie.keygen.timebased.output.timezone", None, "Zone of the partition path."),
    Setting("hoodie.keygen.timebased.timezone", "UTC", "Zone of both, unless given apart."),
    Setting("hoodie.keygen.timebased.timestamp.scalar.time.unit", "SECONDS", "Unit of the field, for SCALAR."),
)

OPTIONS: Mapping[str, Setting] = {
    each.name: each
    for each in (*(each for kind in _CLASSES for each in kind.all_settings()), *_SWITCHES, *_OF_THE_TABLE)
}
"""All known options by name."""


class Options:
    """The options of one table handle: what the caller gave, checked, over the defaults.

    `claims` are the settings among them that say what the table is, `idle` names the Java settings that have no meaning
    here. Neither outlives `merged_over`: who opens a table looks at them.
    """

    def __init__(self, given: Mapping[str, object] | None = None) -> None:
        self.given: dict[str, str] = {}
        self.claims: dict[str, str] = {}
        self.idle: list[str] = []
        if given is not None and not isinstance(given, Mapping):
            raise InvalidRequestError(f"options={given!r}: give values by name, {{{INDEX_TYPE!r}: 'BUCKET'}}.")
        for name, value in (given or {}).items():
            if not is_known_option(name):
                raise InvalidRequestError(_unknown(str(name)))
            if not isinstance(value, str | bool | int | float):
                raise InvalidRequestError(f"option {name}: {value!r} is no text, number or boolean.")
            self._take(name, str(value).lower() if isinstance(value, bool) else str(value))

    def _take(self, name: str, text: str) -> None:
        option = RENAMED.get(name, name)
        if option in OPTIONS:
            if self.given.get(option, text) != text:
                raise InvalidRequestError(f"options {name} and {option} are one and differ. Leave one of them out.")
            OPTIONS[option].plain_value_of(text)
            self.given[option] = text
        if option in CLAIMS:
            self.claims[name] = text
        elif option in REFUSED:
            refusal = REFUSED[option]
            if text.strip().lower() not in ("", *(each.lower() for each in refusal.harmless)):
                raise UnsupportedFeatureError(f"option {name}={text!r} is not supported. {refusal.instead}")
        elif option not in OPTIONS:
            self.idle.append(name)

    def merged_over(self, older: Options) -> Options:
        """These options, and those of `older` where these say nothing."""
        return Options({**older.given, **self.given})

    def text(self, name: str) -> str | None:
        return self.given.get(name, OPTIONS[name].default_text)

    def required_text(self, name: str) -> str:
        value = self.text(name)
        if value is None:
            raise InvalidRequestError(f"option {name} is needed here: pass it in `options`")
        return value

    def flag(self, name: str) -> bool:
        return bool(OPTIONS[name].read(self.given))


def is_known_option(name: object) -> bool:
    """Whether it is an option, or a Java setting that is understood."""
    return isinstance(name, str) and (
        name in OPTIONS or name in RENAMED or name in CLAIMS or name in REFUSED or is_idle(name)
    )


def _unknown(name: str) -> str:
    names = [*OPTIONS, *CLAIMS, *RENAMED, *REFUSED, *(each for names in IDLE.values() for each in names)]
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    hint = f" Did you mean {near[0]!r}?" if near else " See docs/configuration.md for the options there are."
    return f"unknown option {name!r}.{hint}"
