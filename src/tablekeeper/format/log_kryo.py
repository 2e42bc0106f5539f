"""Deletes in the object format of the Kryo library: delete blocks of content version 1 and 2.

Writers before table version 8 stored an array of keys (version 1) or of deletes with an ordering value
(version 2) the way Kryo writes Java objects. This reads those two shapes and nothing else: class names
and strings occur once and are referred to by number afterwards, fields follow in the order of their
names. An ordering value of a class that is not a plain value is refused.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from decimal import Decimal, localcontext
from typing import Any

from tablekeeper.errors import UnsupportedFeatureError

__all__ = ["KryoDelete", "MalformedKryoError", "decode_kryo_deletes"]

KryoDelete = tuple[str | None, str | None, tuple[str, Any] | None]
"""Key, partition path and ordering value (its Java class and itself, or None) of one delete."""

_KEY = "org.apache.hudi.common.model.HoodieKey"
_DELETE = "org.apache.hudi.common.model.DeleteRecord"
_DECIMAL = "java.math.BigDecimal"
_STRING = "java.lang.String"
# Numbers that Kryo itself gives to classes, before any that an application registers.
_NUMBERED = {
    0: "java.lang.Integer",
    1: _STRING,
    2: "java.lang.Float",
    3: "java.lang.Boolean",
    6: "java.lang.Short",
    7: "java.lang.Long",
    8: "java.lang.Double",
}
_BY_NAME = 1
_FIRST_NUMBER = 2
_IS_NULL = 0
_IS_NEW = 1


class MalformedKryoError(Exception):
    """The bytes are no deletes as Kryo writes them."""


def decode_kryo_deletes(data: bytes, *, version: int, file: str) -> list[KryoDelete]:
    """The deletes in the content of a delete block of this version (1 or 2), after its length field."""
    return _Reader(data, file=file).deletes(_KEY if version == 1 else _DELETE)


class _Reader:
    """One pass over the bytes; remembers class names and referable objects in the order of their numbers."""

    def __init__(self, data: bytes, *, file: str) -> None:
        self._data = data
        self._file = file
        self._at = 0
        self._classes: list[str] = []
        self._objects: list[Any] = []
        self._values: Mapping[str, Callable[[], Any]] = {
            "java.lang.Integer": self._signed,
            "java.lang.Long": self._signed,
            "java.lang.Short": lambda: self._unpack(">h"),
            "java.lang.Float": lambda: self._unpack(">f"),
            "java.lang.Double": lambda: self._unpack(">d"),
            "java.lang.Boolean": lambda: self._byte() != 0,
            _STRING: lambda: self._referable(self._text, str),
            _DECIMAL: lambda: self._referable(self._decimal, Decimal),
        }

    def deletes(self, element: str) -> list[KryoDelete]:
        if self._class() != f"[L{element};" or self._integer() != _IS_NEW:
            raise MalformedKryoError(f"no array of {element}")
        self._objects.append(None)
        count = self._integer() - 1
        if not 0 <= count <= len(self._data) - self._at:
            raise MalformedKryoError(f"{count} deletes in {len(self._data) - self._at} bytes")
        read = self._delete if element == _DELETE else self._key_only
        deletes = [read() for _ in range(count)]
        if self._at != len(self._data):
            raise MalformedKryoError(f"{len(self._data) - self._at} bytes after the last delete")
        return deletes

    def _key_only(self) -> KryoDelete:
        key, partition = self._key()
        return key, partition, None

    def _delete(self) -> KryoDelete:
        self._expect_new(_DELETE)
        self._objects.append(None)
        key, partition = self._key()
        return key, partition, self._ordering()

    def _key(self) -> tuple[str | None, str | None]:
        self._expect_new(_KEY)
        self._objects.append(None)
        partition = self._referable(self._text, str)
        return self._referable(self._text, str), partition

    def _ordering(self) -> tuple[str, Any] | None:
        name = self._class()
        if name is None:
            return None
        read = self._values.get(name)
        if read is None:
            raise UnsupportedFeatureError(
                f"{self._file}: a delete has an ordering value of the Java class {name}, which tablekeeper cannot "
                "read. Compact the table with the release that wrote it, then try again."
            )
        value = read()
        return None if value is None else (name, value)

    def _expect_new(self, expected: str) -> None:
        name = self._class()
        if name != expected or self._integer() != _IS_NEW:
            raise MalformedKryoError(f"a {name} where a new {expected} belongs")

    def _class(self) -> str | None:
        """Name of the class of what follows, None for null."""
        code = self._integer()
        if code == _IS_NULL:
            return None
        if code != _BY_NAME:
            return _NUMBERED.get(code - _FIRST_NUMBER, f"number {code - _FIRST_NUMBER}")
        number = self._integer()
        if number == len(self._classes):
            self._classes.append(self._text() or "")
        if number >= len(self._classes):
            raise MalformedKryoError(f"class {number} is not defined")
        return self._classes[number]

    def _referable(self, read: Callable[[], Any], kind: type) -> Any:
        """An object that is written once and referred to by number afterwards, or null."""
        code = self._integer()
        if code == _IS_NULL:
            return None
        if code == _IS_NEW:
            self._objects.append(read())
            return self._objects[-1]
        if code - _FIRST_NUMBER >= len(self._objects):
            raise MalformedKryoError(f"object {code - _FIRST_NUMBER} is not defined")
        found = self._objects[code - _FIRST_NUMBER]
        if not isinstance(found, kind):
            raise MalformedKryoError(f"object {code - _FIRST_NUMBER} is no {kind.__name__}")
        return found

    def _decimal(self) -> Decimal:
        unscaled = int.from_bytes(self._take(self._integer() - 1), "big", signed=True)
        scale = self._signed()
        if not -100 <= scale <= 100:
            raise MalformedKryoError(f"a decimal of scale {scale}")
        with localcontext() as context:
            context.prec = 1000
            return Decimal(unscaled).scaleb(-scale)

    def _text(self) -> str | None:
        first = self._byte()
        if first < 0x80:
            return self._short_ascii()
        count = first & 0x3F
        if first & 0x40:
            count |= self._integer() << 6
        if count == 0:
            return None
        return self._characters(count - 1)

    def _short_ascii(self) -> str:
        """Characters up to one whose high bit marks the end."""
        start = self._at - 1
        while self._byte() < 0x80:
            pass
        raw = self._data[start : self._at]
        return (raw[:-1] + bytes((raw[-1] & 0x7F,))).decode("ascii")

    def _characters(self, count: int) -> str:
        """UTF-16 code units, each as one to three bytes."""
        if count > len(self._data) - self._at:
            raise MalformedKryoError(f"a text of {count} characters in {len(self._data) - self._at} bytes")
        start = self._at
        for _ in range(count):
            lead = self._byte()
            self._take(0 if lead < 0x80 else 1 if lead < 0xE0 else 2)
        units = self._data[start : self._at].decode("utf-8", "surrogatepass")
        return units.encode("utf-16-le", "surrogatepass").decode("utf-16-le")

    def _signed(self) -> int:
        value = self._integer()
        return value >> 1 ^ -(value & 1)

    def _integer(self) -> int:
        """Seven bits a byte, low ones first; a ninth byte is used whole."""
        value = 0
        for shift in range(0, 63, 7):
            byte = self._byte()
            if shift == 56:
                return value | byte << shift
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise AssertionError("the ninth byte always ends the loop")

    def _unpack(self, form: str) -> Any:
        return struct.unpack(form, self._take(struct.calcsize(form)))[0]

    def _byte(self) -> int:
        return self._take(1)[0]

    def _take(self, size: int) -> bytes:
        if not 0 <= size <= len(self._data) - self._at:
            raise MalformedKryoError(f"{size} bytes wanted, {len(self._data) - self._at} left")
        self._at += size
        return self._data[self._at - size : self._at]
