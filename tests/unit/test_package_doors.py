"""The names of the package: all there, each from its home, and loaded no earlier than they are used."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path

import pytest

import tablekeeper


@pytest.mark.parametrize("name", [name for name in tablekeeper.__all__ if name != "__version__"])
def test_a_public_name_is_the_one_of_its_home(name: str) -> None:
    home = tablekeeper._HOMES[name]
    assert getattr(tablekeeper, name) is getattr(import_module(home), name)
    assert name in dir(tablekeeper)


def test_type_checkers_are_told_the_same_homes() -> None:
    tree = ast.parse(Path(str(tablekeeper.__file__)).read_text(encoding="utf-8"))
    told = {
        alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tablekeeper")
        for alias in node.names
    }
    assert told == tablekeeper._HOMES
    assert {*told, "__version__"} == set(tablekeeper.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Tabel'"):
        _ = tablekeeper.Tabel  # type: ignore[attr-defined]
