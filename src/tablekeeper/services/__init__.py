"""What keeps a table healthy: one package a service, and the plans that they share."""

__all__: list[str] = []
