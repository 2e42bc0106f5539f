"""Compares what a caller's settings say about the table with the table itself.

Settings of a Java job name the key, the partitions, the ordering and more. For a new table they are used if the
arguments of `Table.create` are not given. They cannot change an existing table; a setting that contradicts it is an
error, because the job would not write what its author expects.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from tablekeeper.config.java_keys import CLAIMS, RENAMED, Claim
from tablekeeper.config.keys import KEY_GENERATOR, MERGE_MODE
from tablekeeper.config.options import Options
from tablekeeper.config.table_config import MergeMode, TableConfig, TableType, key_generator_type
from tablekeeper.errors import InvalidRequestError, UnsupportedFeatureError

__all__ = ["claimed_options", "claimed_text", "field_names", "refuse_contradictions", "understood"]

_LOG = logging.getLogger(__name__)
_SHORT_TYPES = {"COW": TableType.COPY_ON_WRITE.value, "MOR": TableType.MERGE_ON_READ.value}
_PAYLOADS = {
    "OverwriteWithLatestAvroPayload": MergeMode.COMMIT_TIME,
    "DefaultHoodieRecordPayload": MergeMode.EVENT_TIME,
    "EventTimeAvroPayload": MergeMode.EVENT_TIME,
}
_UPPER = (Claim.MERGE_MODE, Claim.TIME_ZONE, Claim.BASE_FORMAT)
_LISTS = (Claim.KEY, Claim.PARTITION_BY, Claim.ORDERING)


def understood(given: Options, config: TableConfig) -> Options:
    """`given`, after checking what it says about this table; logs which settings have no meaning here."""
    refuse_contradictions(given.claims, config)
    if given.idle:
        _LOG.warning(
            "table %s: these settings of Java have no meaning here and are ignored: %s.",
            config.name,
            ", ".join(sorted(given.idle)),
        )
    return given


def refuse_contradictions(claims: Mapping[str, str], config: TableConfig) -> None:
    """Raise `InvalidRequestError` for the first setting that contradicts the table."""
    for name, text in claims.items():
        claim = CLAIMS[RENAMED.get(name, name)]
        said, true = _normal(claim, name, text), _true(claim, config)
        if claim is Claim.DATABASE and not true:
            # Java keeps it in its catalog, and only some writers put it into the table's properties.
            continue
        if said != true:
            raise InvalidRequestError(
                f"option {name}={text!r} contradicts table {config.name}, whose {claim.value} is {true or 'none'}. "
                "Leave the option out, or check that this is the table you mean."
            )


def claimed_text(claims: Mapping[str, str], claim: Claim) -> str | None:
    """What the settings say about one property, in our terms; None if they do not mention it."""
    for name, text in claims.items():
        if CLAIMS[RENAMED.get(name, name)] is claim:
            return text if claim in _LISTS else _normal(claim, name, text)
    return None


def claimed_options(options: Mapping[str, object] | None) -> Options:
    """The options of a new table, with those that follow from Java's settings among them."""
    given = Options(options)
    inferred: dict[str, object] = {}
    for option, claim in (
        (KEY_GENERATOR, Claim.KEY_GENERATOR),
        (MERGE_MODE, Claim.PAYLOAD),
    ):
        text = claimed_text(given.claims, claim)
        if text is not None and option not in given.given:
            inferred[option] = text
    return Options({**inferred, **(options or {})})


def field_names(text: str) -> list[str]:
    """The columns of a list with commas."""
    return [part.strip() for part in text.split(",") if part.strip()]


def _normal(claim: Claim, name: str, text: str) -> str:
    """The setting's text in one spelling."""
    text = text.strip()
    if claim in _LISTS:
        # Java's custom key generator writes the kind of a partition field behind it.
        return ", ".join(each.partition(":")[0] for each in field_names(text))
    if claim is Claim.TABLE_TYPE:
        return _SHORT_TYPES.get(text.upper(), text.upper())
    if claim in (Claim.PAYLOAD, Claim.KEY_GENERATOR):
        known = _payload_mode(text) if claim is Claim.PAYLOAD else key_generator_type(text)
        if known is None:
            raise UnsupportedFeatureError(
                f"option {name}={text!r}: this class runs in Java only. Leave the option out, and choose a merge mode "
                f"by {MERGE_MODE} or a key generator by {KEY_GENERATOR}."
            )
        return known
    if claim in _UPPER:
        return text.upper()
    return text if claim in (Claim.NAME, Claim.DATABASE) else text.lower()


def _payload_mode(text: str) -> str | None:
    mode = _PAYLOADS.get(text.rsplit(".", 1)[-1])
    return None if mode is None else mode.value


def _true(claim: Claim, config: TableConfig) -> str:
    """What the table says itself, in the same spelling."""
    texts = {
        Claim.NAME: config.name,
        Claim.DATABASE: config.database,
        Claim.KEY: ", ".join(config.key_fields),
        Claim.PARTITION_BY: ", ".join(config.partition_columns),
        Claim.ORDERING: ", ".join(config.ordering_fields),
        Claim.TABLE_TYPE: config.table_type.value,
        Claim.MERGE_MODE: config.merge_mode.value,
        Claim.PAYLOAD: config.merge_mode.value,
        Claim.KEY_GENERATOR: config.key_generator,
        Claim.TIME_ZONE: config.time_zone,
        Claim.BASE_FORMAT: "PARQUET",
        Claim.VERSION: str(config.version),
    }
    flags = {
        Claim.HIVE_STYLE: config.hive_style,
        Claim.URL_ENCODE: config.url_encode,
        Claim.DROPS_PARTITION_COLUMNS: config.drops_partition_columns,
        Claim.META_COLUMNS: config.has_meta_columns,
        Claim.SLASHED_DATES: config.slash_separated_dates,
        Claim.CHANGE_LOG: config.keeps_change_log,
    }
    return texts[claim] if claim in texts else str(flags[claim]).lower()
