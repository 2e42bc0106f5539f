"""Where operations run: the `Executor` protocol and its implementations, chosen by name (`registry.py`)."""
