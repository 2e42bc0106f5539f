"""The tables of the service's database. `tbl` and `operation` have the columns and unique keys of RFC-43.

`operation` has columns of ours behind those of the RFC. What is ours about a table lies in `tbl_state`, so that `tbl`
stays as other programs know it. Times of ours are epoch milliseconds; those of the RFC are timestamps in UTC.

Two unique keys do the work of locks: `operation.running_key` is set while an operation is claimed or running, one an
action of a table; `alarm.open_key` while an alarm is open.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    literal_column,
    or_,
)
from sqlalchemy.dialects import mysql

__all__ = [
    "ALARM",
    "ATTEMPT",
    "DATABASE_POLICY",
    "DELIVERY",
    "EVENT",
    "INSTANCE",
    "IS_STOPPED",
    "METADATA",
    "OPERATION",
    "SAMPLE",
    "TBL",
    "TBL_STATE",
    "TOKEN",
    "TURN",
]

METADATA = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
    }
)
# Names are what they are, letter by letter, also on databases that would fold their case.
_BINARY: dict[str, Any] = {"mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_bin", "mysql_engine": "InnoDB"}
# SQLite counts up only columns that are exactly INTEGER.
_ID = BigInteger().with_variant(Integer, "sqlite")
_MOMENT = DateTime().with_variant(mysql.DATETIME(fsp=6), "mysql")
_LONG = Text().with_variant(mysql.MEDIUMTEXT(), "mysql")

TBL = Table(
    "tbl",
    METADATA,
    Column("id", _ID, primary_key=True, autoincrement=True),
    Column("db_name", String(255), nullable=False),
    Column("table_name", String(255), nullable=False),
    Column("base_path", Text, nullable=False),
    Column("owner", String(255), nullable=False),
    Column("queue", String(255), nullable=False),
    Column("action_types", String(255), nullable=False),
    Column("priority", String(32), nullable=False),
    UniqueConstraint("db_name", "table_name"),
    **_BINARY,
)

TBL_STATE = Table(
    "tbl_state",
    METADATA,
    Column("tbl_id", _ID, ForeignKey("tbl.id", ondelete="CASCADE"), primary_key=True, autoincrement=False),
    Column("path_digest", String(64), nullable=False, unique=True),
    Column("policy", _LONG, nullable=False),
    Column("is_paused", Boolean, nullable=False),
    Column("quarantine", Text, nullable=False),
    Column("look_at_ms", BigInteger, nullable=False),
    Column("hold_until_ms", BigInteger, nullable=False),
    Column("is_noticed", Boolean, nullable=False),
    Column("idle_looks", Integer, nullable=False),
    Column("failed_looks", Integer, nullable=False),
    Column("facts", Text, nullable=False),
    # Of the facts, those that tables are sorted by and chosen by.
    Column("behind_since_ms", BigInteger),
    Column("commits_behind", Integer),
    Column("pending_plans", Integer),
    Column("read_amplification", Float),
    Index("ix_tbl_state_look_at_ms", "look_at_ms"),
    Index("ix_tbl_state_behind_since_ms", "behind_since_ms"),
    **_BINARY,
)
IS_STOPPED = or_(TBL_STATE.c.is_paused.is_(True), TBL_STATE.c.quarantine != literal_column("''"))
"""Nothing runs on the table. Written as its index has it: a parameter in it would match no index."""
# They are few, and every scheduler pass leaves them out. On MariaDB, which cannot index some rows, there is none.
Index("ix_tbl_state_stopped", TBL_STATE.c.tbl_id, postgresql_where=IS_STOPPED, sqlite_where=IS_STOPPED)

DATABASE_POLICY = Table(
    "database_policy",
    METADATA,
    Column("db_name", String(255), primary_key=True),
    Column("policy", _LONG, nullable=False),
    **_BINARY,
)

OPERATION = Table(
    "operation",
    METADATA,
    Column("operation_id", _ID, primary_key=True, autoincrement=True),
    Column("tbl_id", _ID, ForeignKey("tbl.id", ondelete="CASCADE"), nullable=False),
    Column("instant", String(128), nullable=False),
    Column("action", String(32), nullable=False),
    Column("status", Integer, nullable=False),
    Column("engine", String(64), nullable=False),
    Column("retry_on_error", Boolean, nullable=False),
    Column("run_times", Integer, nullable=False),
    Column("isDeleted", Boolean, nullable=False),
    Column("schedule_time", _MOMENT),
    Column("create_time", _MOMENT, nullable=False),
    Column("update_time", _MOMENT, nullable=False),
    Column("failures", Integer, nullable=False),
    Column("priority", Integer, nullable=False),
    Column("queue", String(255), nullable=False),
    Column("owner", String(255), nullable=False),
    Column("parameters", Text, nullable=False),
    Column("not_before_ms", BigInteger, nullable=False),
    Column("deadline_ms", BigInteger),
    Column("finished_ms", BigInteger),
    Column("lease_token", BigInteger, nullable=False),
    Column("lease_until_ms", BigInteger),
    Column("instance_id", String(64), nullable=False),
    Column("running_key", String(64), unique=True),
    Column("cancel_reason", Text, nullable=False),
    Column("why", Text, nullable=False),
    Column("note", Text, nullable=False),
    Column("trace", String(64)),
    UniqueConstraint("tbl_id", "instant"),
    Index("ix_operation_tbl_id_status", "tbl_id", "status"),
    Index("ix_operation_waiting", "status", "not_before_ms"),
    Index("ix_operation_lease", "status", "lease_until_ms"),
    Index("ix_operation_finished", "finished_ms"),
    **_BINARY,
)

ATTEMPT = Table(
    "attempt",
    METADATA,
    Column(
        "operation_id",
        _ID,
        ForeignKey("operation.operation_id", ondelete="CASCADE"),
        primary_key=True,
        autoincrement=False,
    ),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("engine", String(64), nullable=False),
    Column("instance_id", String(64), nullable=False),
    Column("outcome", String(32), nullable=False),
    Column("job_id", String(255), nullable=False),
    Column("started_ms", BigInteger, nullable=False),
    Column("ended_ms", BigInteger),
    Column("message", Text, nullable=False),
    Column("result", _LONG, nullable=False),
    Column("log_path", Text, nullable=False),
    # Why it was the operation's turn; attempts of earlier releases have none.
    Column("why", Text),
    **_BINARY,
)

TURN = Table(
    "turn",
    METADATA,
    # One row, which claims lock where there are limits: only its holder counts what is running.
    Column("name", String(64), primary_key=True),
    **_BINARY,
)

INSTANCE = Table(
    "instance",
    METADATA,
    Column("instance_id", String(64), primary_key=True),
    Column("host", String(255), nullable=False),
    Column("pid", Integer, nullable=False),
    Column("address", String(255), nullable=False),
    Column("slots", Integer, nullable=False),
    Column("started_ms", BigInteger, nullable=False),
    Column("seen_ms", BigInteger, nullable=False),
    Column("is_draining", Boolean, nullable=False),
    **_BINARY,
)

SAMPLE = Table(
    "sample",
    METADATA,
    Column("minute", BigInteger, primary_key=True, autoincrement=False),
    Column("waiting", Integer, nullable=False),
    Column("running", Integer, nullable=False),
    Column("behind", Integer, nullable=False),
    Column("late", Integer, nullable=False),
    Column("longest_behind_s", Integer, nullable=False),
    **_BINARY,
)

EVENT = Table(
    "event",
    METADATA,
    Column("event_id", _ID, primary_key=True, autoincrement=True),
    Column("at_ms", BigInteger, nullable=False),
    Column("kind", String(64), nullable=False),
    Column("text", Text, nullable=False),
    Column("tbl_id", _ID),
    Column("operation_id", _ID),
    Column("instance_id", String(64), nullable=False),
    Index("ix_event_at_ms", "at_ms"),
    Index("ix_event_tbl_id", "tbl_id", "event_id"),
    Index("ix_event_operation_id", "operation_id", "event_id"),
    **_BINARY,
)

ALARM = Table(
    "alarm",
    METADATA,
    Column("alarm_id", _ID, primary_key=True, autoincrement=True),
    Column("alarm_key", String(255), nullable=False),
    Column("open_key", String(255), unique=True),
    Column("rule", String(64), nullable=False),
    Column("text", Text, nullable=False),
    Column("opened_ms", BigInteger, nullable=False),
    Column("resolved_ms", BigInteger),
    Column("tbl_id", _ID),
    Column("operation_id", _ID),
    Index("ix_alarm_resolved_ms", "resolved_ms"),
    **_BINARY,
)

DELIVERY = Table(
    "delivery",
    METADATA,
    Column("delivery_id", _ID, primary_key=True, autoincrement=True),
    Column("alarm_id", _ID, ForeignKey("alarm.alarm_id", ondelete="CASCADE"), nullable=False),
    Column("channel", String(255), nullable=False),
    Column("is_resolved", Boolean, nullable=False),
    Column("is_delivered", Boolean, nullable=False),
    Column("tries", Integer, nullable=False),
    Column("token", Integer, nullable=False),
    Column("next_ms", BigInteger, nullable=False),
    Column("note", Text, nullable=False),
    UniqueConstraint("alarm_id", "channel", "is_resolved"),
    Index("ix_delivery_due", "is_delivered", "next_ms"),
    **_BINARY,
)

TOKEN = Table(
    "token",
    METADATA,
    Column("token_id", _ID, primary_key=True, autoincrement=True),
    Column("name", String(255), nullable=False),
    Column("digest", String(64), nullable=False, unique=True),
    Column("role", Integer, nullable=False),
    Column("scopes", _LONG, nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Column("revoked_ms", BigInteger),
    **_BINARY,
)
