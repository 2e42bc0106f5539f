"""What keeps a table healthy: rollback, savepoints and restore, and the doctor."""

__all__: list[str] = []
