"""Arrow kernels over rows: keys, partitions, merging, predicates, evolution."""

__all__: list[str] = []
