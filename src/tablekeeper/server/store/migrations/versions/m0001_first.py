"""The first schema: tables and operations of RFC-43, and what the service keeps beside them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

__all__ = ["branch_labels", "depends_on", "down_revision", "revision", "upgrade"]

revision = "0001"
down_revision: str | None = None
branch_labels: str | None = None
depends_on: str | None = None


def upgrade() -> None:
    _create_tbl()
    _create_tbl_state()
    _create_database_policy()
    _create_operation()
    _create_attempt()
    _create_instance()
    _create_event()
    _create_alarm()
    _create_delivery()
    _create_token()


def _create_alarm() -> None:
    op.create_table(
        "alarm",
        sa.Column("alarm_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("alarm_key", sa.String(length=255), nullable=False),
        sa.Column("open_key", sa.String(length=255), nullable=True),
        sa.Column("rule", sa.String(length=64), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("opened_ms", sa.BigInteger(), nullable=False),
        sa.Column("resolved_ms", sa.BigInteger(), nullable=True),
        sa.Column("tbl_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True),
        sa.Column("operation_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True),
        sa.PrimaryKeyConstraint("alarm_id", name=op.f("pk_alarm")),
        sa.UniqueConstraint("open_key", name=op.f("uq_alarm_open_key")),
        mysql_charset="utf8mb4",
        mysql_collate="utf8mb4_bin",
        mysql_engine="InnoDB",
    )
    op.create_index("ix_alarm_resolved_ms", "alarm", ["resolved_ms"], unique=False)


def _create_database_policy() -> None:
    op.create_table(
        "database_policy",
        sa.Column("db_name", sa.String(length=255), nullable=False),
        sa.Column("policy", sa.Text().with_variant(mysql.MEDIUMTEXT(), "mysql"), nullable=False),
        sa.PrimaryKeyConstraint("db_name", name=op.f("pk_database_policy")),
        mysql_charset="utf8mb4",
        mysql_collate="utf8mb4_bin",
        mysql_engine="InnoDB",
    )


def _create_event() -> None:
    op.create_table(
        "event",
        sa.Column("event_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.String(length=64), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("tbl_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True),
        sa.Column("operation_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True),
        sa.Column("instance_id", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("event_id", name=op.f("pk_event")),
        mysql_charset="utf8mb4",
        mysql_collate="utf8mb4_bin",
        mysql_engine="InnoDB",
    )
    op.create_index("ix_event_at_ms", "event", ["at_ms"], unique=False)
    op.create_index("ix_event_operation_id", "event", ["operation_id", "event_id"], unique=False)
    op.create_index("ix_event_tbl_id", "event", ["tbl_id", "event_id"], unique=False)


def _create_instance() -> None:
    op.create_table(
        "instance",
        sa.Column("instance_id", sa.String(length=64), nullable=False),
        sa.Column("host", sa.String(length=255), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("address", sa.String(length=255), nullable=False),
        sa.Column("slots", sa.Integer(), nullable=False),
        sa.Column("started_ms", sa.BigInteger(), nullable=False),
        sa.Column("seen_ms", sa.BigInteger(), nullable=False),
        sa.Column("is_draining", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("instance_id", name=op.f("pk_instance")),
        mysql_charset="utf8mb4",
        mysql_collate="utf8mb4_bin",
        mysql_engine="InnoDB",
    )


def _create_tbl() -> None:
    op.create_table(
        "tbl",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("db_name", sa.String(length=255), nullable=False),
        sa.Column("table_name", sa.String(length=255), nullable=False),
        sa.Column("base_path", sa.Text(), nullable=False),
        sa.Column("owner", sa.String(length=255), nullable=False),
        sa.Column("queue", sa.String(length=255), nullable=False),
        sa.Column("action_types", sa.String(length=255), nullable=False),
        sa.Column("priority", sa.String(length=32), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tbl")),
        sa.UniqueConstraint("db_name", "table_name", name=op.f("uq_tbl_db_name_table_name")),
        mysql_charset="utf8mb4",
        mysql_collate="utf8mb4_bin",
        mysql_engine="InnoDB",
    )


def _create_token() -> None:
    op.create_table(
        "token",
        sa.Column("token_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("role", sa.Integer(), nullable=False),
        sa.Column("scopes", sa.Text().with_variant(mysql.MEDIUMTEXT(), "mysql"), nullable=False),
        sa.Column("created_ms", sa.BigInteger(), nullable=False),
        sa.Column("revoked_ms", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("token_id", name=op.f("pk_token")),
        sa.UniqueConstraint("digest", name=op.f("uq_token_digest")),
        mysql_charset="utf8mb4",
        mysql_collate="utf8mb4_bin",
        mysql_engine="InnoDB",
    )


def _create_delivery() -> None:
    op.create_table(
        "delivery",
        sa.Column(
            "delivery_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False
        ),
        sa.Column("alarm_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("channel", sa.String(length=255), nullable=False),
        sa.Column("is_resolved", sa.Boolean(), nullable=False),
        sa.Column("is_delivered", sa.Boolean(), nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("token", sa.Integer(), nullable=False),
        sa.Column("next_ms", sa.BigInteger(), nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["alarm_id"], ["alarm.alarm_id"], name=op.f("fk_delivery_alarm_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("delivery_id", name=op.f("pk_delivery")),
        sa.UniqueConstraint(
            "alarm_id", "channel", "is_resolved", name=op.f("uq_delivery_alarm_id_channel_is_resolved")
        ),
        mysql_charset="utf8mb4",
        mysql_collate="utf8mb4_bin",
        mysql_engine="InnoDB",
    )
    op.create_index("ix_delivery_due", "delivery", ["is_delivered", "next_ms"], unique=False)


def _create_operation() -> None:
    op.create_table(
        "operation",
        sa.Column(
            "operation_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False
        ),
        sa.Column("tbl_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("instant", sa.String(length=128), nullable=False),
        sa.Column("action", sa.String(length=32), nullable=False),
        sa.Column("status", sa.Integer(), nullable=False),
        sa.Column("engine", sa.String(length=64), nullable=False),
        sa.Column("retry_on_error", sa.Boolean(), nullable=False),
        sa.Column("run_times", sa.Integer(), nullable=False),
        sa.Column("isDeleted", sa.Boolean(), nullable=False),
        sa.Column("schedule_time", sa.DateTime().with_variant(mysql.DATETIME(fsp=6), "mysql"), nullable=True),
        sa.Column("create_time", sa.DateTime().with_variant(mysql.DATETIME(fsp=6), "mysql"), nullable=False),
        sa.Column("update_time", sa.DateTime().with_variant(mysql.DATETIME(fsp=6), "mysql"), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("queue", sa.String(length=255), nullable=False),
        sa.Column("owner", sa.String(length=255), nullable=False),
        sa.Column("parameters", sa.Text(), nullable=False),
        sa.Column("not_before_ms", sa.BigInteger(), nullable=False),
        sa.Column("deadline_ms", sa.BigInteger(), nullable=True),
        sa.Column("finished_ms", sa.BigInteger(), nullable=True),
        sa.Column("lease_token", sa.BigInteger(), nullable=False),
        sa.Column("lease_until_ms", sa.BigInteger(), nullable=True),
        sa.Column("instance_id", sa.String(length=64), nullable=False),
        sa.Column("running_key", sa.String(length=64), nullable=True),
        sa.Column("cancel_reason", sa.Text(), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["tbl_id"], ["tbl.id"], name=op.f("fk_operation_tbl_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("operation_id", name=op.f("pk_operation")),
        sa.UniqueConstraint("running_key", name=op.f("uq_operation_running_key")),
        sa.UniqueConstraint("tbl_id", "instant", name=op.f("uq_operation_tbl_id_instant")),
        mysql_charset="utf8mb4",
        mysql_collate="utf8mb4_bin",
        mysql_engine="InnoDB",
    )
    op.create_index("ix_operation_by_age", "operation", ["status", "queue", "not_before_ms"], unique=False)
    op.create_index(
        "ix_operation_by_priority", "operation", ["status", "queue", "priority", "not_before_ms"], unique=False
    )
    op.create_index("ix_operation_finished", "operation", ["finished_ms"], unique=False)
    op.create_index("ix_operation_lease", "operation", ["status", "lease_until_ms"], unique=False)
    op.create_index("ix_operation_tbl_id_status", "operation", ["tbl_id", "status"], unique=False)


def _create_tbl_state() -> None:
    op.create_table(
        "tbl_state",
        sa.Column("tbl_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=False, nullable=False),
        sa.Column("path_digest", sa.String(length=64), nullable=False),
        sa.Column("policy", sa.Text().with_variant(mysql.MEDIUMTEXT(), "mysql"), nullable=False),
        sa.Column("is_paused", sa.Boolean(), nullable=False),
        sa.Column("quarantine", sa.Text(), nullable=False),
        sa.Column("look_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("hold_until_ms", sa.BigInteger(), nullable=False),
        sa.Column("is_noticed", sa.Boolean(), nullable=False),
        sa.Column("idle_looks", sa.Integer(), nullable=False),
        sa.Column("failed_looks", sa.Integer(), nullable=False),
        sa.Column("facts", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["tbl_id"], ["tbl.id"], name=op.f("fk_tbl_state_tbl_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("tbl_id", name=op.f("pk_tbl_state")),
        sa.UniqueConstraint("path_digest", name=op.f("uq_tbl_state_path_digest")),
        mysql_charset="utf8mb4",
        mysql_collate="utf8mb4_bin",
        mysql_engine="InnoDB",
    )
    op.create_index("ix_tbl_state_look_at_ms", "tbl_state", ["look_at_ms"], unique=False)


def _create_attempt() -> None:
    op.create_table(
        "attempt",
        sa.Column(
            "operation_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=False, nullable=False
        ),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("engine", sa.String(length=64), nullable=False),
        sa.Column("instance_id", sa.String(length=64), nullable=False),
        sa.Column("outcome", sa.String(length=32), nullable=False),
        sa.Column("job_id", sa.String(length=255), nullable=False),
        sa.Column("started_ms", sa.BigInteger(), nullable=False),
        sa.Column("ended_ms", sa.BigInteger(), nullable=True),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("result", sa.Text().with_variant(mysql.MEDIUMTEXT(), "mysql"), nullable=False),
        sa.Column("log_path", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["operation_id"], ["operation.operation_id"], name=op.f("fk_attempt_operation_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("operation_id", "number", name=op.f("pk_attempt")),
        mysql_charset="utf8mb4",
        mysql_collate="utf8mb4_bin",
        mysql_engine="InnoDB",
    )
