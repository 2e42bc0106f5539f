"""Commands for the terminal."""

__all__: list[str] = []
