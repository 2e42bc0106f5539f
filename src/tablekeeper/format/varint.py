"""Numbers of variable length, seven bits a byte, the lowest first: as in Avro (zigzag) and Protobuf."""

from __future__ import annotations

__all__ = ["encode_varint", "encode_zigzag"]


def encode_varint(value: int) -> bytes:
    """The lowest 64 bits of `value`, which may be negative."""
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode_zigzag(value: int) -> bytes:
    """`value` with its sign in the lowest bit, so that small negative numbers stay short."""
    return encode_varint((value << 1) ^ (value >> 63))
