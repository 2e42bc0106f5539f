"""What a table is at an instant."""

__all__: list[str] = []
