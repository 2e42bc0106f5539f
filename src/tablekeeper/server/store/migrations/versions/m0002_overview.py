"""What the pages sort by and draw: the state of each table as columns, and a sample of the lake for every minute.

`operation.trace` is the trace that an operation belongs to.
"""

from __future__ import annotations

import json

import sqlalchemy as sa
from alembic import op

__all__ = ["branch_labels", "depends_on", "down_revision", "revision", "upgrade"]

revision = "0002"
down_revision: str | None = "0001"
branch_labels: str | None = None
depends_on: str | None = None


def upgrade() -> None:
    for column in (
        sa.Column("behind_since_ms", sa.BigInteger(), nullable=True),
        sa.Column("commits_behind", sa.Integer(), nullable=True),
        sa.Column("pending_plans", sa.Integer(), nullable=True),
        sa.Column("read_amplification", sa.Float(), nullable=True),
    ):
        op.add_column("tbl_state", column)
    op.create_index("ix_tbl_state_behind_since_ms", "tbl_state", ["behind_since_ms"], unique=False)
    op.add_column("operation", sa.Column("trace", sa.String(length=64), nullable=True))
    op.create_table(
        "sample",
        sa.Column("minute", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("waiting", sa.Integer(), nullable=False),
        sa.Column("running", sa.Integer(), nullable=False),
        sa.Column("behind", sa.Integer(), nullable=False),
        sa.Column("late", sa.Integer(), nullable=False),
        sa.Column("longest_behind_s", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("minute", name=op.f("pk_sample")),
        mysql_charset="utf8mb4",
        mysql_collate="utf8mb4_bin",
        mysql_engine="InnoDB",
    )
    _fill_from_facts()


def _fill_from_facts() -> None:
    """What the last look at each table showed: without it pages would know nothing until the next one."""
    state = sa.table(
        "tbl_state",
        sa.column("tbl_id", sa.BigInteger()),
        sa.column("facts", sa.Text()),
        *(sa.column(name) for name in _COPIED),
    )
    connection = op.get_bind()
    rows = connection.execute(sa.select(state.c.tbl_id, state.c.facts)).all()
    for tbl_id, text in rows:
        facts = json.loads(text)
        values = {name: facts.get(name) for name in _COPIED}
        connection.execute(sa.update(state).where(state.c.tbl_id == tbl_id).values(**values))


_COPIED = ("behind_since_ms", "commits_behind", "pending_plans", "read_amplification")
