"""Delete blocks of log files <-> Arrow.

Content: int32 version | int32 length | that many bytes. From version 3 on they are the Avro binary of
a list of {recordKey, partitionPath, orderingVal}, where the ordering value is wrapped by type and
several ordering columns come as a list of wrapped values. A delete without an ordering value, or
with the integer 0 that Java writes for "none", takes effect by commit time.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from decimal import localcontext
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tablekeeper.errors import CorruptTableError, InvalidRequestError, UnsupportedFeatureError
from tablekeeper.format.avro_rows import binary_values, encode_values, encode_varints, join_pieces
from tablekeeper.format.avro_types import AvroNode
from tablekeeper.format.log_blocks import BlockType, LogBlock
from tablekeeper.format.log_kryo import KryoDelete, MalformedKryoError, decode_kryo_deletes

__all__ = ["DELETE_SCHEMA_NAMES", "decode_deletes", "encode_deletes"]

DELETE_SCHEMA_NAMES = ("key", "partition", "ordering", "by_commit_time")
"""Columns of the table that `decode_deletes` gives."""

_CONTENT_VERSION = 3
_START = struct.Struct(">ii")
_FLOAT = struct.Struct("<f")
_DOUBLE = struct.Struct("<d")
_NULL = 0
_INT = 2
_DATE = 8
_DECIMAL = 9
_ARRAY = 12
_LOCAL_DATE_IN_ARRAY = 12
_DECIMAL_TYPE = pa.decimal128(30, 15)
# Number of the wrapper in the union -> Arrow type of the value in it.
_WRAPPED: Mapping[int, pa.DataType] = {
    1: pa.bool_(),
    _INT: pa.int32(),
    3: pa.int64(),
    4: pa.float32(),
    5: pa.float64(),
    6: pa.binary(),
    7: pa.string(),
    _DATE: pa.date32(),
    _DECIMAL: _DECIMAL_TYPE,
    10: pa.time64("us"),
    11: pa.timestamp("us", tz="UTC"),
}
_WRAPPED_IN_ARRAY: Mapping[int, pa.DataType] = {**_WRAPPED, _LOCAL_DATE_IN_ARRAY: pa.date32()}
_KINDS_OF_CLASSES: Mapping[str, int] = {
    "java.lang.Boolean": 1,
    "java.lang.Integer": _INT,
    "java.lang.Short": _INT,
    "java.lang.Long": 3,
    "java.lang.Float": 4,
    "java.lang.Double": 5,
    "java.lang.String": 7,
    "java.math.BigDecimal": _DECIMAL,
}
_TEXT = AvroNode("string", pa.string(), union=(0, 1))


def decode_deletes(block: LogBlock, *, file: str) -> pa.Table:
    """The deletes of a block: columns `key`, `partition`, `ordering` and `by_commit_time`.

    `ordering` has the type of the values in the block, or is a struct of fields `f0`, `f1`, … where the
    table has several ordering columns; it is null where `by_commit_time` is true, and of type null
    where that is so throughout. Dates and timestamps are stored as their integers (`int32` days, `int64`
    in the unit of the column) and decimals with 15 places: cast to the type of the ordering column.
    """
    if block.type is not BlockType.DELETE:
        raise ValueError(f"a {block.type.name} block holds no deletes")
    content = memoryview(block.content).cast("B")
    if len(content) < _START.size:
        raise _corrupt(file, block, f"{len(content)} bytes of content")
    version, length = _START.unpack_from(content)
    if not 0 <= length <= len(content) - _START.size:
        raise _corrupt(file, block, f"a length of {length} in {len(content)} bytes of content")
    data = bytes(content[_START.size : _START.size + length])
    try:
        if version in (1, 2):
            return _kryo_table(decode_kryo_deletes(data, version=version, file=file))
        if version == _CONTENT_VERSION:
            return _AvroDeletes(data).table()
    except (_MalformedError, MalformedKryoError, UnicodeError, IndexError, pa.ArrowException, OverflowError) as error:
        raise _corrupt(file, block, f"deletes that do not decode ({error})") from error
    raise UnsupportedFeatureError(
        f"{file}: the delete block at byte {block.offset} has content version {version}, which this release does not "
        "know. Upgrade tablekeeper, or compact the file group with the writer's own release."
    )


def _corrupt(file: str, block: LogBlock, reason: str) -> CorruptTableError:
    return CorruptTableError(file=file, reason=f"the delete block at byte {block.offset} has {reason}")


class _MalformedError(Exception):
    """The bytes are no list of deletes."""


class _AvroDeletes:
    """One pass over the bytes of a list of delete records."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        # All other kinds are integers.
        self._readers: Mapping[int, Callable[[], Any]] = {
            1: self._boolean,
            4: lambda: self._packed(_FLOAT),
            5: lambda: self._packed(_DOUBLE),
            6: self._bytes,
            7: self._bytes,
            _DECIMAL: self._decimal,
        }

    def table(self) -> pa.Table:
        keys: list[bytes | None] = []
        partitions: list[bytes | None] = []
        kinds: list[int] = []
        values: list[Any] = []
        while (count := self._long()) != 0:
            if count < 0:
                count = -count
                self._long()
            # Each record takes at least three bytes: a branch for each of its fields.
            if count > (len(self._data) - self._at) // 3:
                raise _MalformedError(f"{count} records in {len(self._data) - self._at} bytes")
            for _ in range(count):
                keys.append(self._text())
                partitions.append(self._text())
                kind = self._long()
                kinds.append(kind)
                values.append(self._array() if kind == _ARRAY else self._value(kind, _WRAPPED))
        if self._at != len(self._data):
            raise _MalformedError(f"{len(self._data) - self._at} bytes after the last record")
        return _delete_table(keys, partitions, kinds, values)

    def _long(self) -> int:
        data, at = self._data, self._at
        byte = data[at]
        result = byte & 0x7F
        shift = 7
        at += 1
        while byte > 0x7F:
            if shift > 63:
                raise _MalformedError("an integer of more than ten bytes")
            byte = data[at]
            result |= (byte & 0x7F) << shift
            shift += 7
            at += 1
        self._at = at
        return (result >> 1) ^ -(result & 1)

    def _bytes(self) -> bytes:
        length = self._long()
        start = self._at
        end = start + length
        if length < 0 or end > len(self._data):
            raise _MalformedError(f"a value of {length} bytes with {len(self._data) - start} left")
        self._at = end
        return self._data[start:end]

    def _text(self) -> bytes | None:
        branch = self._long()
        if branch == _NULL:
            return None
        if branch != 1:
            raise _MalformedError(f"branch {branch} of a union of two")
        return self._bytes()

    def _packed(self, packing: struct.Struct) -> float:
        start = self._at
        self._at = start + packing.size
        if self._at > len(self._data):
            raise _MalformedError("a number that is cut off")
        return float(packing.unpack_from(self._data, start)[0])

    def _value(self, kind: int, kinds: Mapping[int, pa.DataType]) -> Any:
        if kind == _NULL:
            return None
        if kind not in kinds:
            raise _MalformedError(f"an ordering value of kind {kind}")
        reader = self._readers.get(kind)
        return self._long() if reader is None else reader()

    def _decimal(self) -> int:
        unscaled = self._bytes()
        if not unscaled:
            raise _MalformedError("a decimal of no bytes")
        return int.from_bytes(unscaled, "big", signed=True)

    def _boolean(self) -> bool:
        byte = self._data[self._at]
        if byte > 1:
            raise _MalformedError(f"a boolean of {byte}")
        self._at += 1
        return byte == 1

    def _array(self) -> list[tuple[int, Any]] | None:
        if self._long() == _NULL:
            return None
        items = []
        while (count := self._long()) != 0:
            if count < 0:
                count = -count
                self._long()
            if count > len(self._data) - self._at:
                raise _MalformedError(f"{count} ordering values in {len(self._data) - self._at} bytes")
            for _ in range(count):
                kind = self._long()
                items.append((kind, self._value(kind, _WRAPPED_IN_ARRAY)))
        return items


def _kryo_table(deletes: list[KryoDelete]) -> pa.Table:
    keys = [None if key is None else key.encode() for key, _partition, _value in deletes]
    partitions = [None if partition is None else partition.encode() for _key, partition, _value in deletes]
    orderings = [(_NULL, None) if typed is None else _wrapped_java(*typed) for _key, _partition, typed in deletes]
    return _delete_table(keys, partitions, [kind for kind, _value in orderings], [value for _kind, value in orderings])


def _wrapped_java(java_class: str, value: Any) -> tuple[int, Any]:
    """An ordering value as its number in the union and in the form that a wrapper holds it."""
    kind = _KINDS_OF_CLASSES[java_class]
    if kind == 7:
        return kind, value.encode()
    if kind == _DECIMAL:
        with localcontext() as context:
            context.prec = 1000
            unscaled = value.scaleb(_DECIMAL_TYPE.scale)
            if unscaled != unscaled.to_integral_value():
                raise _MalformedError(f"an ordering value with more than {_DECIMAL_TYPE.scale} decimal places")
            return kind, int(unscaled)
    return kind, value


def _delete_table(
    keys: list[bytes | None], partitions: list[bytes | None], kinds: list[int], values: list[Any]
) -> pa.Table:
    by_commit_time = [value is None or (kind == _INT and value == 0) for kind, value in zip(kinds, values, strict=True)]
    left = [None if default else value for default, value in zip(by_commit_time, values, strict=True)]
    used = {kind for kind, value in zip(kinds, left, strict=True) if value is not None}
    ordering = _struct_ordering(left, used) if _ARRAY in used else _plain_ordering(left, used, _WRAPPED)
    columns = [_text_array(keys), _text_array(partitions), ordering, pa.array(by_commit_time, pa.bool_())]
    return pa.table(columns, names=list(DELETE_SCHEMA_NAMES))


def _text_array(values: list[bytes | None]) -> pa.Array:
    return pa.array(values, pa.binary()).cast(pa.string())


def _plain_ordering(values: list[Any], used: set[int], kinds: Mapping[int, pa.DataType]) -> pa.Array:
    if not used:
        return pa.nulls(len(values))
    types = {kinds[kind] for kind in used}
    if len(types) > 1:
        if types != {pa.int32(), pa.int64()}:
            raise _MalformedError(f"ordering values of several types ({', '.join(sorted(map(str, types)))})")
        return pa.array(values, pa.int64())
    arrow = types.pop()
    if arrow == pa.string():
        return _text_array(values)
    return _decimal_array(values) if arrow == _DECIMAL_TYPE else pa.array(values, arrow)


def _decimal_array(unscaled: list[int | None]) -> pa.Array:
    data = b"".join((value or 0).to_bytes(16, "little", signed=True) for value in unscaled)
    validity = pa.array([value is not None for value in unscaled], pa.bool_()).buffers()[1]
    array = pa.Array.from_buffers(_DECIMAL_TYPE, len(unscaled), [validity, pa.py_buffer(data)])
    array.validate(full=True)
    return array


def _struct_ordering(values: list[Any], used: set[int]) -> pa.Array:
    widths = {len(value) for value in values if value is not None} if used == {_ARRAY} else set()
    if len(widths) != 1:
        raise _MalformedError("ordering values of different shapes")
    fields = []
    for number in range(widths.pop()):
        pairs = [(_NULL, None) if value is None else value[number] for value in values]
        kinds = {kind for kind, value in pairs if value is not None}
        fields.append(_plain_ordering([value for _kind, value in pairs], kinds, _WRAPPED_IN_ARRAY))
    mask = pa.array([value is None for value in values], pa.bool_())
    return pa.StructArray.from_arrays(fields, names=[f"f{number}" for number in range(len(fields))], mask=mask)


def encode_deletes(keys: pa.Array, *, partition: str, ordering: pa.Array | None) -> bytes:
    """The content of a delete block for these keys of one partition.

    `ordering` has the ordering value of each delete, a struct for several ordering columns; None writes
    Java's mark for "by commit time" throughout. A null in it has the same meaning for its delete.
    """
    count = len(keys)
    if ordering is not None and len(ordering) != count:
        raise ValueError(f"{count} keys and {len(ordering)} ordering values")
    keys = _one_array(keys).cast(pa.string())
    if keys.null_count:
        raise InvalidRequestError("a delete needs a record key, but one of the keys is null")
    places = pa.array([partition], pa.string()).take(pa.array(np.zeros(count, np.int64)))
    pieces = [
        encode_values(_TEXT, keys, column="key"),
        encode_values(_TEXT, places, column="partition"),
        *_ordering_pieces(ordering, count),
    ]
    body = b"\x00"
    if count:
        records = join_pieces(pieces, count)
        body = b"".join((binary_values(encode_varints(np.array([count]))), binary_values(records), body))
    return _START.pack(_CONTENT_VERSION, len(body)) + body


def _ordering_pieces(ordering: pa.Array | None, count: int) -> list[pa.Array]:
    if ordering is None or pa.types.is_null(ordering.type):
        return [encode_varints(np.full(count, _INT)), encode_varints(np.zeros(count, np.int64))]
    ordering = _one_array(ordering)
    valid = np.asarray(ordering.is_valid())
    none = np.zeros(count, np.int64)
    if not pa.types.is_struct(ordering.type):
        kinds, encoded = _wrapped_pieces(ordering)
        # Null as Java writes it: the integer 0. The value of a null is empty, so one piece can hold each.
        return [encode_varints(np.where(valid, kinds, _INT)), encoded, encode_varints(none, ~valid)]
    fields = ordering.flatten()
    pieces = [
        encode_varints(np.where(valid, _ARRAY, _INT)),
        encode_varints(none, ~valid),
        encode_varints(none + 1, valid),
        encode_varints(none + len(fields), valid),
    ]
    for field in fields:
        kinds, encoded = _wrapped_pieces(field)
        pieces += [encode_varints(kinds, valid), encoded]
    return [*pieces, encode_varints(none, valid)]


def _wrapped_pieces(values: pa.Array) -> tuple[npt.NDArray[np.int64], pa.Array]:
    """Number of the wrapper of each value, 0 for null, and the encoded values, empty for null."""
    kind, stored = _wrapper_of(values.type)
    try:
        values = values.cast(pa.date32()) if pa.types.is_date64(values.type) else values
        values = values.cast(stored.arrow)
    except pa.ArrowInvalid as error:
        raise InvalidRequestError(
            f"an ordering value of type {values.type} does not fit into {stored.arrow}, the widest that a delete "
            f"carries ({error}). Use a smaller type for the ordering column, or delete by commit time."
        ) from error
    return np.where(np.asarray(values.is_valid()), kind, _NULL), encode_values(stored, values, column="ordering")


def _wrapper_of(arrow: pa.DataType) -> tuple[int, AvroNode]:
    """Number of the wrapper for an ordering column's type, and the Avro type of the value in it."""
    if pa.types.is_dictionary(arrow):
        return _wrapper_of(arrow.value_type)
    for matches, kind, avro, stored in _WRAPPERS:
        if matches(arrow):
            # Marked as nullable for the encoder to write nothing for a null: the wrapper number says it.
            return kind, AvroNode(avro, stored, hides_nulls=True)
    raise InvalidRequestError(f"an ordering column cannot be of type {arrow}. Choose another ordering column.")


def _is_small_int(arrow: pa.DataType) -> bool:
    return arrow in (pa.int8(), pa.int16(), pa.int32())


def _is_text(arrow: pa.DataType) -> bool:
    return arrow in (pa.string(), pa.large_string(), pa.string_view())


def _is_bytes(arrow: pa.DataType) -> bool:
    return arrow in (pa.binary(), pa.large_binary(), pa.binary_view())


# Dates, times and timestamps are written as the integers that the rows hold. The wrappers made for
# them hold objects of other classes, which Java's reader fails to compare with the rows.
_WRAPPERS: Sequence[tuple[Callable[[pa.DataType], bool], int, str, pa.DataType]] = (
    (pa.types.is_boolean, 1, "boolean", pa.bool_()),
    (_is_small_int, _INT, "int", pa.int32()),
    (pa.types.is_date, _INT, "int", pa.int32()),
    (pa.types.is_time32, _INT, "int", pa.int32()),
    (pa.types.is_int64, 3, "long", pa.int64()),
    (pa.types.is_timestamp, 3, "long", pa.int64()),
    (pa.types.is_time64, 3, "long", pa.int64()),
    (pa.types.is_float32, 4, "float", pa.float32()),
    (pa.types.is_float64, 5, "double", pa.float64()),
    (_is_bytes, 6, "bytes", pa.binary()),
    (_is_text, 7, "string", pa.string()),
    (pa.types.is_decimal, _DECIMAL, "bytes", _DECIMAL_TYPE),
)


def _one_array(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
