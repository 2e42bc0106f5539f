"""Where tasks run: Spark, or threads of this process."""

__all__: list[str] = []
