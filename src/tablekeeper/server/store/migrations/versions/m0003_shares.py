"""Indexes for what waits by queue and owner: the backlog of one owner hides nobody else's work."""

from __future__ import annotations

from alembic import op

__all__ = ["branch_labels", "depends_on", "down_revision", "revision", "upgrade"]

revision = "0003"
down_revision: str | None = "0002"
branch_labels: str | None = None
depends_on: str | None = None

_INDEXES = {
    "ix_operation_by_priority": ["status", "queue", "owner", "priority", "not_before_ms"],
    "ix_operation_by_age": ["status", "queue", "owner", "not_before_ms"],
}


def upgrade() -> None:
    for name, columns in _INDEXES.items():
        op.drop_index(name, "operation")
        op.create_index(name, "operation", columns, unique=False)
