"""The ways back: rollback, savepoints and restore."""

__all__: list[str] = []
