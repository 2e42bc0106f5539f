"""Log compaction: many small logs merged into one."""

__all__: list[str] = []
