"""Files turned into rows."""

__all__: list[str] = []
