"""Every clause of the design documents has a row in the map, and what counts as done has tests that exist."""

from __future__ import annotations

import pytest

from tests.tidy import spec
from tests.tidy.sources import ROOT, Source, load_sources

CLAUSES = {"guard-a": "One.", "guard-b": "Two."}
TESTS = {"tests/unit/test_a.py::test_one"}
MODULES = {"txn/commit.py"}
DONE = "| guard-a | One. | `txn/commit.py` | done | `tests/unit/test_a.py::test_one` |"
PLANNED = "| guard-b | Two. | `services/plans/execute.py` | planned: table services | |"


def gaps(*lines: str) -> list[str]:
    return spec.find_gaps(spec.decode_map("\n".join(lines)), clauses=CLAUSES, tests=TESTS, modules=MODULES)


def test_the_map_covers_every_clause_with_tests_that_exist() -> None:
    sources = load_sources()
    found = spec.find_gaps(
        spec.decode_map((ROOT / "docs/spec_map.md").read_text(encoding="utf-8")),
        clauses=spec.load_clause_list(ROOT / "docs/spec_clauses.toml"),
        tests=spec.existing_tests(sources),
        modules={source.module + ".py" for source in sources if source.in_package},
    )
    assert not found, "\n" + "\n".join(found)


def test_the_clause_list_covers_all_five_documents() -> None:
    ids = spec.load_clause_list(ROOT / "docs/spec_clauses.toml")
    assert {name.split("-")[0] for name in ids} == {"guard", "cancellable", "rfc43", "rfc71", "rfc83"}
    assert len(ids) > 80


def test_a_complete_map_has_no_gaps() -> None:
    assert gaps("| clause | text |", DONE, PLANNED) == []


@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        ([DONE], "guard-b: in the clause list, not in the map"),
        ([DONE, DONE, PLANNED], "guard-a: in the map twice"),
        ([DONE, PLANNED, PLANNED.replace("guard-b", "guard-c")], "guard-c: not in the clause list"),
        ([DONE.replace("One.", "Uno."), PLANNED], "guard-a: the text differs from the clause list"),
        ([DONE.replace("test_one", "test_gone"), PLANNED], "guard-a: no test tests/unit/test_a.py::test_gone"),
        ([DONE.replace("`tests/unit/test_a.py::test_one`", ""), PLANNED], "guard-a: done without a test"),
        ([DONE.replace("commit.py", "gone.py"), PLANNED], "guard-a: done in txn/gone.py, which does not exist"),
        ([DONE, PLANNED.replace("table services", "some day")], "guard-b: 'planned: some day' is neither"),
    ],
)
def test_a_gap_in_the_map_is_reported(lines: list[str], complaint: str) -> None:
    found = gaps(*lines)
    assert len(found) == 1
    assert found[0].startswith(complaint)


def test_a_row_with_a_missing_cell_is_refused() -> None:
    with pytest.raises(ValueError, match="3 cells"):
        spec.decode_map("| guard-a | One. | `txn/commit.py` | done |")


def test_tests_are_found_in_classes_and_in_modules() -> None:
    text = "def test_a(): ...\nclass TestB:\n    def test_c(self): ...\ndef build(): ...\n"
    found = spec.existing_tests([Source("tests/unit/test_x.py", text), Source("src/tablekeeper/y.py", text)])
    assert found == {"tests/unit/test_x.py::test_a", "tests/unit/test_x.py::TestB::test_c"}
