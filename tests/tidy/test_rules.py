"""The project keeps its own rules, and every rule is able to fail."""

from __future__ import annotations

import pytest

from tests.tidy import rules
from tests.tidy.sources import Source, load_sources

SOURCES = load_sources()
PACKAGE = "src/tablekeeper/"


@pytest.mark.parametrize("rule", rules.RULES, ids=lambda rule: rule.__name__)
def test_the_project_keeps_the_rule_without_an_exception(rule: rules.Rule) -> None:
    found = rules.violations(rule, SOURCES)
    assert not found, "\n" + "\n".join(map(str, found))


BAD_SAMPLES = [
    (rules.module_header, "read/a.py", "x = 1\n"),
    (rules.explicit_exports, "read/a.py", '"""Doc."""\n\ndef f() -> None: ...\n'),
    (rules.module_size, "read/a.py", "x = 1\n" * 501),
    (rules.function_size, "read/a.py", "def f():\n" + "    x = 1\n" * 61),
    (rules.function_size, "read/a.py", "class C:\n    async def f(self):\n" + "        x = 1\n" * 61),
    (rules.import_homes, "write/a.py", "import time\n"),
    (rules.import_homes, "write/a.py", "def f():\n    from uuid import uuid4\n"),
    (rules.import_homes, "txn/a.py", "import threading as t\n"),
    (rules.import_homes, "table/a.py", "from concurrent.futures import ThreadPoolExecutor\n"),
    (rules.import_homes, "engine/local.py", "from pyspark.sql import DataFrame\n"),
    (rules.import_homes, "read/a.py", "import obstore.store\n"),
    (rules.import_homes, "table/a.py", "import sqlalchemy\n"),
    (rules.hudi_keys_in_config, "write/a.py", 'KEY = "hoodie.index.type"\n'),
    (rules.hudi_keys_in_config, "write/a.py", 'raise ValueError(f"set hoodie.metadata.enable for {x}")\n'),
    (rules.banned_names, "write/utils.py", ""),
    (rules.banned_names, "write/key_helpers.py", ""),
    (rules.banned_names, "write/a.py", "def get_key(): ...\n"),
    (rules.banned_names, "write/a.py", "class C:\n    def _get_key(self): ...\n"),
    (rules.banned_names, "write/a.py", "def write_inner(): ...\n"),
    (rules.banned_names, "write/a.py", "class LockManager: ...\n"),
    (
        rules.guarded_changes_under_the_lock,
        "txn/a.py",
        "def f(environment):\n    with environment.locked() as held:\n        environment.storage.delete(held)\n",
    ),
    (
        rules.guarded_changes_under_the_lock,
        "txn/a.py",
        "def f(e):\n    storage, c = e.storage, e.config\n    with e.locked() as held:\n        storage.delete(c)\n",
    ),
    (
        rules.guarded_changes_under_the_lock,
        "txn/a.py",
        "class C:\n    def f(self):\n        with self._e.locked():\n            remove(self._e)\n",
    ),
    (rules.pure_plan_functions, "services/a.py", "def plan_draft(environment: TableEnvironment): ...\n"),
    (rules.pure_plan_functions, "services/a.py", "class C:\n    def _plan_it(self, *, s: Storage | None): ...\n"),
    (rules.settings_without_components, "config/a.py", "class LockSettings:\n    clock: Clock\n"),
    (rules.system_runtime_at_roots, "write/a.py", "from tablekeeper.runtime import SYSTEM_RUNTIME, Runtime\n"),
    (rules.system_runtime_at_roots, "write/a.py", "from tablekeeper.runtime import SYSTEM_RUNTIME as runtime\n"),
    (rules.system_runtime_at_roots, "server/loops/a.py", "def f():\n    return runtime.SYSTEM_RUNTIME.clock\n"),
    (rules.no_questions_about_the_engine, "read/a.py", 'if self.engine.name != "local":\n    f()\n'),
    (rules.silent_excepts, "write/a.py", "try:\n    f()\nexcept Exception:\n    pass\n"),
    (rules.silent_excepts, "write/a.py", "try:\n    f()\nexcept:\n    ...\n"),
    (
        rules.silent_excepts,
        "write/a.py",
        "for x in y:\n    try:\n        f()\n    except (OSError, Exception):\n        continue\n",
    ),
    (rules.silent_excepts, "write/a.py", "with contextlib.suppress(Exception):\n    f()\n"),
    (rules.one_door_to_completion, "txn/commit.py", "from tablekeeper.timeline import complete_instant\n"),
    (rules.one_door_to_completion, "services/a.py", "timeline.complete_instant(storage)\n"),
    (rules.one_door_to_the_timeline, "write/a.py", 'storage.put(f".hoodie/timeline/{name}", b"")\n'),
    (rules.one_door_to_the_timeline, "txn/a.py", "self._storage.put_if_absent(instant_path(instant), data)\n"),
    (rules.one_door_to_the_timeline, "txn/a.py", "store.open_output(join_path(TIMELINE, name))\n"),
    (rules.one_door_to_the_timeline, "txn/a.py", 'store.put(base + ".commit.requested", b"")\n'),
]


@pytest.mark.parametrize(("rule", "path", "text"), BAD_SAMPLES)
def test_a_bad_sample_is_caught(rule: rules.Rule, path: str, text: str) -> None:
    found = rules.violations(rule, [Source(PACKAGE + path, text)])
    assert len(found) == 1
    assert found[0].path == PACKAGE + path


@pytest.mark.parametrize("text", ["import time\ntime.sleep(1)\n", "from time import sleep\n"])
def test_a_sleeping_test_is_caught(text: str) -> None:
    assert len(rules.violations(rules.sleeping_tests, [Source("tests/unit/test_a.py", text)])) == 1


GOOD_SAMPLES = [
    (rules.explicit_exports, "read/__init__.py", '"""Only a header."""\n'),
    (rules.explicit_exports, "read/a.py", "__all__: list[str] = []\nx = 1\n"),
    (rules.function_size, "read/a.py", 'def f():\n    """' + "long\n" * 70 + '"""\n    return 1\n'),
    (rules.import_homes, "runtime.py", "import time, uuid, random, threading\n"),
    (rules.import_homes, "engine/spark.py", "import pyspark\n"),
    (rules.import_homes, "engine/spark_rows.py", "import pyspark\n"),
    (rules.import_homes, "spark_datasource.py", "import pyspark\n"),
    (rules.import_homes, "storage/objects.py", "import obstore\n"),
    (rules.import_homes, "storage/a.py", "from .time import x\n"),
    (rules.hudi_keys_in_config, "config/a.py", 'KEY = "hoodie.index.type"\n'),
    (rules.hudi_keys_in_config, "format/a.py", 'NAME = ".hoodie/hoodie.properties"\n'),
    (rules.hudi_keys_in_config, "format/a.py", 'KEY = "com.uber.hoodie.bloomfilter"\n'),
    (rules.hudi_keys_in_config, "format/a.py", 'NAMESPACE = f"hoodie.{table}"\n'),
    (rules.hudi_keys_in_config, "write/a.py", '"""Obeys hoodie.index.type."""\n# hoodie.index.type\n'),
    (rules.hudi_keys_in_config, "write/a.py", 'X = 1\n"""Default of hoodie.index.type."""\n'),
    (rules.hudi_keys_in_config, "write/a.py", "f = lambda x: g(x)\n"),
    (rules.banned_names, "write/a.py", "def target(): ...\nwidget_count = 1\n"),
    (rules.pure_plan_functions, "services/a.py", "def plan_draft(snapshot: Snapshot): ...\n"),
    (rules.settings_without_components, "config/a.py", "class LockSettings:\n    timeout_s: float\n"),
    (rules.system_runtime_at_roots, "table/table.py", "from tablekeeper.runtime import SYSTEM_RUNTIME, Runtime\n"),
    (rules.system_runtime_at_roots, "write/a.py", "from tablekeeper.runtime import Runtime\n"),
    (rules.no_questions_about_the_engine, "read/a.py", "if engine.scans_parquet:\n    f(engine.name)\n"),
    (rules.silent_excepts, "write/a.py", "try:\n    f()\nexcept KeyError:\n    pass\n"),
    (rules.silent_excepts, "write/a.py", "try:\n    f()\nexcept Exception as error:\n    report(error)\n"),
    (rules.one_door_to_completion, "txn/publish.py", "from tablekeeper.timeline import complete_instant\n"),
    (rules.one_door_to_completion, "txn/a.py", "from tablekeeper.timeline import load_timeline\n"),
    (rules.one_door_to_the_timeline, "timeline/transition.py", 'storage.put(".hoodie/timeline/x", b"")\n'),
    (rules.one_door_to_the_timeline, "timeline/archive.py", 'storage.put(f"{TIMELINE}/history/_version_", b"1")\n'),
    (rules.one_door_to_the_timeline, "read/a.py", 'storage.read(".hoodie/timeline/x")\n'),
]


@pytest.mark.parametrize(("rule", "path", "text"), GOOD_SAMPLES)
def test_a_good_sample_passes(rule: rules.Rule, path: str, text: str) -> None:
    assert rules.violations(rule, [Source(PACKAGE + path, text)]) == []


def test_every_rule_has_a_bad_sample() -> None:
    sampled = {rule for rule, _, _ in BAD_SAMPLES} | {rules.sleeping_tests}
    assert sampled == set(rules.RULES)


def test_exported_names_are_read_from_the_syntax_tree() -> None:
    assert rules.exported_names(Source("a.py", '__all__ = ["A", "b"]\n')) == ["A", "b"]
