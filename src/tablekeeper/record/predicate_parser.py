"""Reads the text of `where=` into a predicate.

    or:        and ("or" and)*
    and:       not ("and" not)*
    not:       "not" not | "(" or ")" | condition
    condition: column op value | value op column | column ["not"] "in" "(" value, … ")"
             | column ["not"] "between" value "and" value | column ["not"] "like" text | column "is" ["not"] "null"

The text is a subset of Spark SQL: backslash escapes and doubled quotes in text, back-quoted
names, and double-quoted names as in standard SQL. Everything else is refused with its position.
"""

from __future__ import annotations

import datetime as dt
import decimal
import re
from dataclasses import dataclass

from tablekeeper.errors import InvalidRequestError
from tablekeeper.record.predicate_literals import Literal
from tablekeeper.record.predicate_nodes import And, Comparison, In, IsNull, Like, Not, Or, Predicate

__all__ = ["parse_predicate"]

_TOKEN = re.compile(
    r"""\s*(?:
      (?P<bytes>[xX]'[^']*')
    | (?P<text>'(?:[^'\\]|\\.|'')*')
    | (?P<quoted>`(?:[^`]|``)+`|"(?:[^"]|"")+")
    | (?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?(?![A-Za-z_0-9.]))
    | (?P<word>[A-Za-z_][A-Za-z0-9_]*)
    | (?P<symbol><=>|<=|>=|<>|!=|==|[=<>(),.+-])
    )""",
    re.VERBOSE | re.DOTALL,
)
_OPERATORS = {"=": "=", "==": "=", "!=": "!=", "<>": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_FLIPPED = {"=": "=", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_KEYWORDS = frozenset({"and", "or", "not", "in", "between", "is", "null", "like", "true", "false"})
_TYPED = {"date": "date", "timestamp": "timestamp", "timestamp_ntz": "timestamp"}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "0": "\0", "Z": "\x1a", "%": "\\%", "_": "\\_"}
_ESCAPE = re.compile(r"\\u([0-9A-Fa-f]{4})|\\(.)|''", re.DOTALL)
_DEEPEST = 100


def parse_predicate(text: str) -> Predicate:
    """The predicate that `text` says; raises InvalidRequestError with the position of what is not understood."""
    parser = _Parser(text, _tokens(text))
    predicate = parser.disjunction(depth=0)
    parser.expect_end()
    return predicate


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    position: int

    @property
    def word(self) -> str:
        return self.text.lower() if self.kind == "word" else ""


@dataclass(frozen=True, slots=True)
class _Column:
    """A column name where a value could have stood."""

    path: str


def _tokens(text: str) -> list[_Token]:
    tokens: list[_Token] = []
    position = 0
    end = len(text.rstrip())
    while position < end:
        found = _TOKEN.match(text, position)
        if found is None:
            start = position + len(text[position:]) - len(text[position:].lstrip())
            hint = " (is a quote not closed?)" if text[start] in "'\"`" else ""
            raise _error_at(text, start, f"cannot read {text[start : start + 12]!r}{hint}")
        kind = str(found.lastgroup)
        tokens.append(_Token(kind, found[kind], found.start(kind)))
        position = found.end()
    return [*tokens, _Token("end", "", len(text))]


def _error_at(text: str, position: int, problem: str) -> InvalidRequestError:
    return InvalidRequestError(f"where clause, position {position + 1}: {problem}. The clause is: {text}")


class _Parser:
    """One pass over the tokens, by recursive descent."""

    def __init__(self, text: str, tokens: list[_Token]) -> None:
        self._text = text
        self._tokens = tokens
        self._at = 0

    def disjunction(self, *, depth: int) -> Predicate:
        operands = [self._conjunction(depth=depth)]
        while self._take_word("or"):
            operands.append(self._conjunction(depth=depth))
        return operands[0] if len(operands) == 1 else Or(tuple(operands))

    def expect_end(self) -> None:
        if self._next.kind != "end":
            raise self._error("expected `and`, `or` or the end")

    def _conjunction(self, *, depth: int) -> Predicate:
        operands = [self._negation(depth=depth)]
        while self._take_word("and"):
            operands.append(self._negation(depth=depth))
        return operands[0] if len(operands) == 1 else And(tuple(operands))

    def _negation(self, *, depth: int) -> Predicate:
        if depth > _DEEPEST:
            raise self._error(f"more than {_DEEPEST} levels of parentheses and `not`")
        if self._take_word("not"):
            return Not(self._negation(depth=depth + 1))
        if self._take("("):
            inner = self.disjunction(depth=depth + 1)
            self._require(")")
            return inner
        return self._condition()

    def _condition(self) -> Predicate:
        start = self._at
        left = self._operand()
        if not isinstance(left, _Column):
            op = self._operator()
            right = self._operand()
            if not isinstance(right, _Column):
                self._at = start
                raise self._error("a comparison needs a column on one side")
            return Comparison(right.path, _FLIPPED[op], left)
        if self._take_word("is"):
            excluded = self._take_word("not")
            self._require_word("null")
            return IsNull(left.path, excluded)
        if self._next.word in ("not", "in", "between", "like"):
            return self._membership(left.path)
        op = self._operator()
        return Comparison(left.path, op, self._value())

    def _membership(self, column: str) -> Predicate:
        excluded = self._take_word("not")
        if self._take_word("in"):
            self._require("(")
            values = [self._value()]
            while self._take(","):
                values.append(self._value())
            self._require(")")
            return In(column, tuple(values), excluded)
        if self._take_word("between"):
            low = self._value()
            self._require_word("and")
            between = And((Comparison(column, ">=", low), Comparison(column, "<=", self._value())))
            return Not(between) if excluded else between
        if self._take_word("like"):
            if self._next.kind != "text":
                raise self._error("expected a pattern in single quotes")
            return Like(column, _unquote(self._advance().text), excluded)
        raise self._error("expected `in`, `between` or `like`")

    def _operator(self) -> str:
        op = _OPERATORS.get(self._next.text)
        if op is None or self._next.kind != "symbol":
            raise self._error("expected a comparison (= != < <= > >= in between like is)")
        self._advance()
        return op

    def _value(self) -> Literal:
        start = self._at
        value = self._operand()
        if isinstance(value, _Column):
            self._at = start
            raise self._error("expected a value, columns cannot be compared with each other; put text in single quotes")
        return value

    def _operand(self) -> Literal | _Column:
        token = self._next
        if token.kind == "number" or token.text in ("-", "+"):
            return self._number()
        if token.kind == "text":
            return _unquote(self._advance().text)
        if token.kind == "bytes":
            return self._bytes()
        if token.word in ("true", "false", "null"):
            self._advance()
            return None if token.word == "null" else token.word == "true"
        if token.word in _TYPED and self._tokens[self._at + 1].kind == "text":
            return self._time()
        if token.kind == "quoted" or (token.kind == "word" and token.word not in _KEYWORDS):
            return self._column()
        raise self._error("expected a column or a value")

    def _number(self) -> Literal:
        negative = self._next.text == "-"
        if self._next.kind == "symbol":
            self._advance()
        if self._next.kind != "number":
            raise self._error("expected a number")
        text = ("-" if negative else "") + self._advance().text
        if "e" in text.lower():
            return float(text)
        return decimal.Decimal(text) if "." in text else int(text)

    def _bytes(self) -> bytes:
        try:
            value = bytes.fromhex(self._next.text[2:-1])
        except ValueError:
            raise self._error("expected an even number of hexadecimal digits") from None
        self._advance()
        return value

    def _time(self) -> dt.date:
        kind = _TYPED[self._advance().word]
        text = _unquote(self._next.text)
        try:
            value = dt.date.fromisoformat(text) if kind == "date" else dt.datetime.fromisoformat(text)
        except ValueError:
            example = "2024-01-31" if kind == "date" else "2024-01-31 10:00:00"
            raise self._error(f"expected a {kind} such as '{example}'") from None
        self._advance()
        return value

    def _column(self) -> _Column:
        parts = [self._name()]
        while self._take("."):
            parts.append(self._name())
        if self._next.text == "(":
            raise self._error("functions are not supported")
        return _Column(".".join(parts))

    def _name(self) -> str:
        token = self._next
        if token.kind == "quoted":
            quote = token.text[0]
            self._advance()
            return token.text[1:-1].replace(quote * 2, quote)
        if token.kind != "word":
            raise self._error("expected a column name")
        return self._advance().text

    @property
    def _next(self) -> _Token:
        return self._tokens[self._at]

    def _advance(self) -> _Token:
        token = self._next
        self._at = min(self._at + 1, len(self._tokens) - 1)
        return token

    def _take(self, symbol: str) -> bool:
        taken = self._next.kind == "symbol" and self._next.text == symbol
        if taken:
            self._advance()
        return taken

    def _take_word(self, word: str) -> bool:
        taken = self._next.word == word
        if taken:
            self._advance()
        return taken

    def _require(self, symbol: str) -> None:
        if not self._take(symbol):
            raise self._error(f"expected `{symbol}`")

    def _require_word(self, word: str) -> None:
        if not self._take_word(word):
            raise self._error(f"expected `{word}`")

    def _error(self, expected: str) -> InvalidRequestError:
        found = "the end" if self._next.kind == "end" else self._next.text
        return _error_at(self._text, self._next.position, f"{expected}, found {found}")


def _unquote(quoted: str) -> str:
    def replaced(found: re.Match[str]) -> str:
        if found[1]:
            return chr(int(found[1], 16))
        return "'" if found[2] is None else _ESCAPES.get(found[2], found[2])

    return _ESCAPE.sub(replaced, quoted[1:-1])
