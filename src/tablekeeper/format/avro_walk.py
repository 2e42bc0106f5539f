"""Walk over Avro values one at a time, to find where items of arrays and maps start.

The columnar decoder reads values of many records at once; the items of one long array depend on
each other, so that finding their starts is a loop. Values are stepped over here, not decoded.
The caller's bytes are followed by at least one zero byte, which ends any integer.
"""

from __future__ import annotations

from collections.abc import Callable

from tablekeeper.format.avro_types import AvroNode

__all__ = ["MAX_EMPTY_ITEMS", "MalformedAvroError", "walk_items"]

MAX_EMPTY_ITEMS = 1 << 16
"""Most items of an array whose items take no bytes: nothing else bounds such a count."""

_MAX_INTEGER_SIZE = 10


class MalformedAvroError(Exception):
    """The bytes are not what the schema says. Callers say which file it is."""


def walk_items(item: AvroNode, data: bytes, at: int, end: int, *, count: int | None = None) -> tuple[list[int], int]:
    """Starts of the items of an array at `at`, and the position after it.

    With `count`, the head of a block was read already: walk that many items and stop before the next head.
    """
    step = _stepper(item)
    starts: list[int] = []
    left = count
    while True:
        if left is None:
            left, at = _block_head(item.min_size, data, at, end)
            if left == 0:
                return starts, at
        for _ in range(left):
            starts.append(at)
            at = step(data, at, end)
            if at > end:
                raise MalformedAvroError("an item that runs past the end of its record")
        if count is not None:
            return starts, at
        left = None


_Step = Callable[[bytes, int, int], int]


def _block_head(smallest: int, data: bytes, at: int, end: int) -> tuple[int, int]:
    count, at = _integer(data, at, end)
    if count < 0:
        count = -count
        _size, at = _integer(data, at, end)
    room = (end - at) // smallest if smallest else MAX_EMPTY_ITEMS
    if count > room:
        raise MalformedAvroError("more items than bytes to hold them")
    return count, at


def _integer(data: bytes, at: int, end: int) -> tuple[int, int]:
    after = _step_integer(data, at, end)
    value = 0
    for byte in reversed(data[at:after]):
        value = value << 7 | byte & 0x7F
    if value >= 1 << 64:
        raise MalformedAvroError("an integer of more than 64 bits")
    return value >> 1 ^ -(value & 1), after


def _step_integer(data: bytes, at: int, end: int) -> int:
    start = at
    while at < end and data[at] > 0x7F:
        at += 1
    if at >= end or at - start >= _MAX_INTEGER_SIZE:
        raise MalformedAvroError("an integer that does not end")
    return at + 1


def _step_bytes(data: bytes, at: int, end: int) -> int:
    size, at = _integer(data, at, end)
    if size < 0:
        raise MalformedAvroError("a value of negative length")
    return at + size


def _stepper(node: AvroNode) -> _Step:
    step = _plain_stepper(node)
    if node.union is None:
        return step
    null, value = node.union

    def step_union(data: bytes, at: int, end: int) -> int:
        branch, at = _integer(data, at, end)
        if branch == value:
            return step(data, at, end)
        if branch != null:
            raise MalformedAvroError("a branch that the union does not have")
        return at

    return step_union


def _plain_stepper(node: AvroNode) -> _Step:
    if node.kind in ("int", "long", "enum"):
        return _step_integer
    if node.kind in ("string", "bytes"):
        return _step_bytes
    if node.kind in ("array", "map"):
        return _list_stepper(node)
    if node.kind == "record":
        steps = [_stepper(child) for child in node.children]

        def step_record(data: bytes, at: int, end: int) -> int:
            for step in steps:
                at = step(data, at, end)
            return at

        return step_record
    size = node.min_value_size
    return lambda _data, at, _end: at + size


def _list_stepper(node: AvroNode) -> _Step:
    steps = [_stepper(child) for child in node.children]
    smallest = sum(child.min_size for child in node.children)

    def step_list(data: bytes, at: int, end: int) -> int:
        while True:
            count, at = _block_head(smallest, data, at, end)
            if count == 0:
                return at
            for _ in range(count):
                for step in steps:
                    at = step(data, at, end)
                if at > end:
                    raise MalformedAvroError("an item that runs past the end of its record")

    return step_list
