"""Run by Alembic: hands it the connection of `store/migrate.py`, in whose transaction all steps run."""

from __future__ import annotations

from alembic import context

from tablekeeper.server.store.schema import METADATA

__all__: list[str] = []

context.configure(
    connection=context.config.attributes["connection"], target_metadata=METADATA, transaction_per_migration=False
)
with context.begin_transaction():
    context.run_migrations()
