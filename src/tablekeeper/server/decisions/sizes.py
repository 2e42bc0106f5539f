"""How sizes are told to people. Pure."""

from __future__ import annotations

__all__ = ["size_text"]

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def size_text(size_bytes: float) -> str:
    """Bytes in powers of 1024: `900 B`, `1.5 MiB`, `320 GiB`."""
    amount, unit = float(size_bytes), _UNITS[0]
    for unit in _UNITS:
        if abs(amount) < 1024 or unit == _UNITS[-1]:
            break
        amount /= 1024
    return f"{amount:.0f} {unit}" if unit == "B" or amount >= 100 else f"{amount:.1f} {unit}"
