"""Typed settings, and the only home of Hudi's option names."""

__all__: list[str] = []
