"""Indexes for scheduler passes that read what waits in one statement, and pass over tables that nothing runs on."""

from __future__ import annotations

from alembic import op

__all__ = ["branch_labels", "depends_on", "down_revision", "revision", "upgrade"]

revision = "0005"
down_revision: str | None = "0004"
branch_labels: str | None = None
depends_on: str | None = None

_IS_STOPPED = {"postgresql": "is_paused IS true OR quarantine != ''", "sqlite": "is_paused IS 1 OR quarantine != ''"}
_CREATE = "CREATE INDEX ix_tbl_state_stopped ON tbl_state (tbl_id) WHERE "


def upgrade() -> None:
    for name in ("ix_operation_by_priority", "ix_operation_by_age"):
        op.drop_index(name, "operation")
    op.create_index("ix_operation_waiting", "operation", ["status", "not_before_ms"], unique=False)
    condition = _IS_STOPPED.get(op.get_bind().dialect.name)
    if condition is not None:
        op.execute(_CREATE + condition)
