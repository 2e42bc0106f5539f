"""Clustering: small files rewritten as larger, ordered ones."""

__all__: list[str] = []
