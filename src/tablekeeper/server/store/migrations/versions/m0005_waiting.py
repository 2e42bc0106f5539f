"""Indexes for scheduler passes that read what waits in one statement, and pass over tables that nothing runs on."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

__all__ = ["branch_labels", "depends_on", "down_revision", "revision", "upgrade"]

revision = "0005"
down_revision: str | None = "0004"
branch_labels: str | None = None
depends_on: str | None = None

_IS_STOPPED = {"postgresql": "is_paused IS true OR quarantine != ''", "sqlite": "is_paused IS 1 OR quarantine != ''"}


def upgrade() -> None:
    for name in ("ix_operation_by_priority", "ix_operation_by_age"):
        op.drop_index(name, "operation")
    op.create_index("ix_operation_waiting", "operation", ["status", "not_before_ms"], unique=False)
    dialect = op.get_bind().dialect.name
    if dialect in _IS_STOPPED:
        which = {f"{dialect}_where": sa.text(_IS_STOPPED[dialect])}
        op.create_index("ix_tbl_state_stopped", "tbl_state", ["tbl_id"], unique=False, **which)
