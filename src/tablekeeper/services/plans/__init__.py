"""Plans of every kind: window, schedule, guard, execute, cancel, list and explain. All other services may use it."""

__all__: list[str] = []
