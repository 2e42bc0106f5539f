"""Avro schemas with their names resolved: a tree of `AvroNode`, each with the Arrow type of its values.

Decoder and encoder walk this tree, so that they agree with `avro_to_arrow_schema` by construction.
A column is one type, or a union of null and one type. Recursive types and wider unions are
refused; a schema that is no Avro schema is a `CorruptTableError`, because it came from a file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from tablekeeper.errors import CorruptTableError, UnsupportedFeatureError

__all__ = ["MAX_DECIMAL_PRECISION", "AvroNode", "AvroSchema", "resolve_record"]

AvroSchema = Any
"""An Avro schema as JSON text or as the values parsed from it."""

MAX_DECIMAL_PRECISION = 38
_MAX_DEPTH = 64


@dataclass(frozen=True, slots=True)
class AvroNode:
    """One type of a schema.

    `kind` is a primitive type's name, or fixed, enum, record, array or map. `union` holds the branch
    numbers of a union: (of null or None, of the value or None); None where there is no union.
    `hides_nulls` is for callers that write the branch themselves: a null takes no bytes.
    """

    kind: str
    arrow: pa.DataType
    union: tuple[int | None, int | None] | None = None
    children: tuple[AvroNode, ...] = ()
    names: tuple[str, ...] = ()
    symbols: tuple[str, ...] = ()
    size: int = 0
    hides_nulls: bool = False

    @property
    def nullable(self) -> bool:
        """True if a value may be absent."""
        return self.hides_nulls or self.kind == "null" or (self.union is not None and self.union[0] is not None)

    def field(self, name: str) -> pa.Field:
        """The Arrow field for a column of this type."""
        return pa.field(name, self.arrow, nullable=self.nullable)

    @property
    def min_size(self) -> int:
        """Bytes that every field of this type takes at least."""
        return self.min_value_size if self.union is None else 1

    @property
    def min_value_size(self) -> int:
        """Bytes that every value of this type takes at least, the branch of a union not counted."""
        if self.kind == "record":
            return sum(child.min_size for child in self.children)
        return {"null": 0, "float": 4, "double": 8, "fixed": self.size}.get(self.kind, 1)


def resolve_record(avro: AvroSchema, *, file: str) -> AvroNode:
    """The type tree of a record schema; `file` is named in errors."""
    if isinstance(avro, str):
        try:
            avro = json.loads(avro)
        except (ValueError, RecursionError) as error:
            raise CorruptTableError(file=file, reason=f"the Avro schema is not JSON ({error})") from error
    if not isinstance(avro, dict) or avro.get("type") not in ("record", "error"):
        raise CorruptTableError(file=file, reason="the Avro schema is not a record")
    return _Resolver(file).node(avro, namespace="", path="", depth=0)


_PRIMITIVES: Mapping[str, pa.DataType] = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_LOGICAL: Mapping[tuple[str, str], pa.DataType] = {
    ("int", "date"): pa.date32(),
    ("int", "time-millis"): pa.time32("ms"),
    ("long", "time-micros"): pa.time64("us"),
    ("long", "timestamp-millis"): pa.timestamp("ms", tz="UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", tz="UTC"),
    ("long", "timestamp-nanos"): pa.timestamp("ns", tz="UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("ms"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
    ("long", "local-timestamp-nanos"): pa.timestamp("ns"),
}


class _Resolver:
    """Resolves one schema; named types are kept by full name for later references."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._named: dict[str, AvroNode] = {}
        self._open: set[str] = set()

    def node(self, avro: Any, *, namespace: str, path: str, depth: int) -> AvroNode:
        if depth > _MAX_DEPTH:
            raise UnsupportedFeatureError(f"{self._file}: {path!r} nests deeper than {_MAX_DEPTH} levels")
        if isinstance(avro, list):
            return self._union(avro, namespace=namespace, path=path, depth=depth)
        if isinstance(avro, str):
            return self._named_type(avro, namespace=namespace, path=path)
        if not isinstance(avro, dict) or "type" not in avro:
            raise self._corrupt(path, f"no Avro type: {str(avro)[:80]}")
        if not isinstance(avro["type"], str):
            # {"type": {"type": "int"}}: the outer object adds nothing but attributes.
            return self.node(avro["type"], namespace=namespace, path=path, depth=depth + 1)
        return self._complex(avro, namespace=namespace, path=path, depth=depth)

    def _union(self, avro: list[Any], *, namespace: str, path: str, depth: int) -> AvroNode:
        values = [number for number, branch in enumerate(avro) if branch != "null"]
        nulls = [number for number, branch in enumerate(avro) if branch == "null"]
        if not avro or len(nulls) > 1:
            raise self._corrupt(path, "an empty union, or one with null twice")
        if len(values) > 1:
            raise UnsupportedFeatureError(
                f"{self._file}: {path!r} is a union of {len(values)} types; a column has one type, or null and one"
            )
        union = (nulls[0] if nulls else None, values[0] if values else None)
        if not values:
            return AvroNode("null", pa.null(), union=union)
        if isinstance(avro[values[0]], list):
            raise self._corrupt(path, "a union inside a union")
        return replace(self.node(avro[values[0]], namespace=namespace, path=path, depth=depth + 1), union=union)

    def _complex(self, avro: dict[str, Any], *, namespace: str, path: str, depth: int) -> AvroNode:
        kind = avro["type"]
        if kind in ("record", "error"):
            return self._record(avro, namespace=namespace, path=path, depth=depth)
        if kind == "array":
            item = self.node(avro.get("items"), namespace=namespace, path=f"{path}.element", depth=depth + 1)
            return AvroNode("array", pa.list_(item.field("element")), children=(item,))
        if kind == "map":
            value = self.node(avro.get("values"), namespace=namespace, path=f"{path}.value", depth=depth + 1)
            arrow = pa.map_(pa.string(), value.field("value"))
            return AvroNode("map", arrow, children=(AvroNode("string", pa.string()), value))
        if kind in ("fixed", "enum"):
            full, _space = self._full_name(avro, namespace=namespace, path=path)
            self._named[full] = self._fixed(avro, path=path) if kind == "fixed" else self._enum(avro, path=path)
            return self._named[full]
        return self._primitive(avro, namespace=namespace, path=path)

    def _record(self, avro: dict[str, Any], *, namespace: str, path: str, depth: int) -> AvroNode:
        full, space = self._full_name(avro, namespace=namespace, path=path)
        fields = avro.get("fields")
        if not isinstance(fields, list):
            raise self._corrupt(path, "a record without fields")
        self._open.add(full)
        children: dict[str, AvroNode] = {}
        for field in fields:
            if not isinstance(field, dict) or not isinstance(field.get("name"), str) or "type" not in field:
                raise self._corrupt(path, "a field without name or type")
            name = field["name"]
            if name in children:
                raise self._corrupt(path, f"the field {name!r} twice")
            inner = f"{path}.{name}" if path else name
            children[name] = self.node(field["type"], namespace=space, path=inner, depth=depth + 1)
        self._open.discard(full)
        arrow = pa.struct([child.field(name) for name, child in children.items()])
        self._named[full] = AvroNode("record", arrow, children=tuple(children.values()), names=tuple(children))
        return self._named[full]

    def _primitive(self, avro: dict[str, Any], *, namespace: str, path: str) -> AvroNode:
        kind, logical = avro["type"], avro.get("logicalType")
        if kind == "bytes" and logical == "decimal":
            return AvroNode("bytes", self._decimal(avro, path=path))
        if isinstance(logical, str) and (kind, logical) in _LOGICAL:
            return AvroNode(kind, _LOGICAL[kind, logical])
        return self._named_type(kind, namespace=namespace, path=path)

    def _fixed(self, avro: dict[str, Any], *, path: str) -> AvroNode:
        size = avro.get("size")
        if type(size) is not int or not 0 < size < 1 << 31:
            raise self._corrupt(path, f"a fixed type of size {size}")
        if avro.get("logicalType") != "decimal":
            return AvroNode("fixed", pa.binary(size), size=size)
        decimal = self._decimal(avro, path=path)
        if size > 16:
            raise UnsupportedFeatureError(f"{self._file}: {path!r} is a decimal in {size} bytes, at most 16 are read")
        return AvroNode("fixed", decimal, size=size)

    def _enum(self, avro: dict[str, Any], *, path: str) -> AvroNode:
        symbols = avro.get("symbols")
        if not isinstance(symbols, list) or not all(isinstance(symbol, str) for symbol in symbols):
            raise self._corrupt(path, "an enum without symbols")
        return AvroNode("enum", pa.string(), symbols=tuple(symbols))

    def _decimal(self, avro: dict[str, Any], *, path: str) -> pa.DataType:
        precision, scale = avro.get("precision"), avro.get("scale", 0)
        if type(precision) is not int or type(scale) is not int or not 0 <= scale <= precision or precision < 1:
            raise self._corrupt(path, f"a decimal of precision {precision} and scale {scale}")
        if precision > MAX_DECIMAL_PRECISION:
            raise UnsupportedFeatureError(
                f"{self._file}: {path!r} is a decimal of {precision} digits, at most {MAX_DECIMAL_PRECISION} are read"
            )
        return pa.decimal128(precision, scale)

    def _named_type(self, name: str, *, namespace: str, path: str) -> AvroNode:
        if name in _PRIMITIVES:
            return AvroNode(name, _PRIMITIVES[name])
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        for candidate in (full, name):
            if candidate in self._open:
                raise UnsupportedFeatureError(f"{self._file}: {path!r} contains itself (recursive type {candidate})")
            if candidate in self._named:
                return self._named[candidate]
        raise self._corrupt(path, f"the type {name!r}, which it does not define")

    def _full_name(self, avro: dict[str, Any], *, namespace: str, path: str) -> tuple[str, str]:
        """Full name of a named type, and the namespace that holds inside it."""
        name = avro.get("name")
        if not isinstance(name, str) or not name:
            raise self._corrupt(path, f"a {avro.get('type')} type without a name")
        if "." in name:
            return name, name.rsplit(".", 1)[0]
        space = avro.get("namespace", namespace)
        if not isinstance(space, str):
            raise self._corrupt(path, "a namespace that is no text")
        return (f"{space}.{name}" if space else name), space

    def _corrupt(self, path: str, reason: str) -> CorruptTableError:
        where = f" at {path!r}" if path else ""
        return CorruptTableError(file=self._file, reason=f"the Avro schema{where} has {reason}")
