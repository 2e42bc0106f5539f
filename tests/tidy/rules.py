"""The rules of the code base as functions from a source to violations.

Each rule is pure, so that the tests can show on a bad sample that it is able to fail. A rule says itself
which files it concerns.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator

from tests.tidy.sources import Source, Violation

Rule = Callable[[Source], Iterator[Violation]]

MAX_MODULE_LINES = 500
MAX_FUNCTION_LINES = 60

# Who may import what: distribution or module -> patterns of module paths below the package.
IMPORT_HOMES: dict[str, tuple[str, ...]] = {
    "pyspark": (r"engine/spark\w*", r"spark_datasource"),
    "py4j": (r"engine/spark\w*",),
    "pyflink": (r"engine/flink",),
    "obstore": (r"storage/.*",),
    "kazoo": (r"txn/locks/zookeeper",),
    "fastapi": (r"server/.*",),
    "sqlalchemy": (r"server/.*", r"testing/service/.*"),
    "grpc": (r"server/.*",),
    "time": (r"runtime",),
    "uuid": (r"runtime",),
    "random": (r"runtime", r"testing/chance"),
    "greenlet": (r"testing/loop",),
    "secrets": (r"runtime",),
    "threading": (r"runtime",),
    "multiprocessing": (r"runtime",),
    "concurrent": (r"runtime",),
}

_Function = ast.FunctionDef | ast.AsyncFunctionDef


def _at(source: Source, node: ast.AST | int, message: str) -> Violation:
    line = node if isinstance(node, int) else getattr(node, "lineno", 1)
    return Violation(source.path, line, message)


def _functions(tree: ast.Module) -> Iterator[tuple[str, _Function]]:
    """Every function with its qualified name, methods and nested ones included."""

    def visit(node: ast.AST, prefix: str) -> Iterator[tuple[str, _Function]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, _Function):
                yield prefix + child.name, child
                yield from visit(child, f"{prefix}{child.name}.")
            elif isinstance(child, ast.ClassDef):
                yield from visit(child, f"{prefix}{child.name}.")
            else:
                yield from visit(child, prefix)

    return visit(tree, "")


def module_header(source: Source) -> Iterator[Violation]:
    """Every module starts by saying what it is for."""
    if not (ast.get_docstring(source.tree) or "").strip():
        yield _at(source, 1, "no module docstring: say what the module is for and what holds in it")


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _is_future(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and node.module == "__future__"


def _exports(tree: ast.Module) -> ast.expr | None:
    for node in tree.body:
        if not isinstance(node, ast.Assign | ast.AnnAssign):
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
            return node.value
    return None


def exported_names(source: Source) -> list[str]:
    """The names in `__all__`, which has to be a plain list or tuple of strings."""
    value = _exports(source.tree)
    return [str(name) for name in ast.literal_eval(value)] if value is not None else []


def explicit_exports(source: Source) -> Iterator[Violation]:
    """Every module of the package that holds anything says what it exports."""
    if not source.in_package:
        return
    holds_something = any(not _is_docstring(node) and not _is_future(node) for node in source.tree.body)
    if holds_something and _exports(source.tree) is None:
        yield _at(source, 1, "no __all__: list the names that other modules may use")


def module_size(source: Source) -> Iterator[Violation]:
    """Modules stay small enough to read in one sitting."""
    lines = len(source.text.splitlines())
    if lines > MAX_MODULE_LINES:
        yield _at(source, 1, f"{lines} lines, at most {MAX_MODULE_LINES}: split it by concern")


def function_size(source: Source) -> Iterator[Violation]:
    """Functions stay small; the docstring does not count."""
    for name, function in _functions(source.tree):
        body = function.body[1:] if _is_docstring(function.body[0]) else function.body
        lines = (function.end_lineno or function.lineno) - body[0].lineno + 1 if body else 0
        if lines > MAX_FUNCTION_LINES:
            yield _at(source, function, f"{name} has {lines} lines, at most {MAX_FUNCTION_LINES}")


def _imported(tree: ast.Module) -> Iterator[tuple[ast.AST, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node, node.module


def import_homes(source: Source) -> Iterator[Violation]:
    """Clocks, randomness, threads, Spark, object stores and frameworks each have one home, also inside functions."""
    if not source.in_package:
        return
    for node, name in _imported(source.tree):
        root = name.split(".")[0]
        homes = IMPORT_HOMES.get(root)
        if homes is not None and not any(re.fullmatch(home, source.module) for home in homes):
            yield _at(source, node, f"imports {name}, which only {' or '.join(homes)} may")


def _docstrings(tree: ast.Module) -> set[int]:
    """Identities of the string nodes that document a module, a class, a function or the assignment above them."""
    return {
        id(node.value)
        for parent in ast.walk(tree)
        if isinstance(parent, ast.Module | ast.ClassDef | _Function)
        for node in parent.body
        if isinstance(node, ast.Expr) and _is_docstring(node)
    }


_HUDI_KEY = re.compile(r"(?<![\w.])hoodie\.(?!properties\b)[a-z]")


def hudi_keys_in_config(source: Source) -> Iterator[Violation]:
    """Names of Hudi settings are spelled out in config/ only."""
    if not source.in_package or source.module.startswith("config/"):
        return
    documentation = _docstrings(source.tree)
    for node in ast.walk(source.tree):
        text = node.value if isinstance(node, ast.Constant) and id(node) not in documentation else None
        if isinstance(text, str) and _HUDI_KEY.search(text):
            yield _at(source, node, f"spells out a Hudi setting ({text[:60]!r}): name it in config/ and use that")


_VAGUE_MODULES = {"common", "commons", "helper", "helpers", "misc", "util", "utils"}
_VAGUE_PARTS = {"helper", "helpers", "util", "utils"}


def banned_names(source: Source) -> Iterator[Violation]:
    """Names say what a thing is; these say nothing."""
    for part in source.path.removesuffix(".py").split("/"):
        if _VAGUE_MODULES & set(part.split("_")):
            yield _at(source, 1, f"{part} is a drawer, not a concern: name the module after what it does")
    for node in ast.walk(source.tree):
        if isinstance(node, _Function):
            if node.name.lstrip("_").startswith("get_"):
                yield _at(source, node, f"{node.name}: say load_, plan_, or name the thing itself instead of get_")
            if node.name.endswith("_inner") or _VAGUE_PARTS & set(node.name.split("_")):
                yield _at(source, node, f"{node.name}: say what it does")
        elif isinstance(node, ast.ClassDef) and re.search(r"Manager|Helper|Utils?$", node.name):
            yield _at(source, node, f"{node.name}: name the class after what it is")


def _names(node: ast.expr | None) -> set[str]:
    if node is None:
        return set()
    parts = node.elts if isinstance(node, ast.Tuple) else [node]
    return {part.attr if isinstance(part, ast.Attribute) else getattr(part, "id", "") for part in parts}


def _does_nothing(node: ast.stmt) -> bool:
    if isinstance(node, ast.Pass | ast.Continue):
        return True
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def silent_excepts(source: Source) -> Iterator[Violation]:
    """No error disappears: nothing that catches everything may do nothing about it."""
    broad = {"Exception", "BaseException"}
    for node in ast.walk(source.tree):
        if isinstance(node, ast.ExceptHandler):
            catches_all = node.type is None or bool(_names(node.type) & broad)
            if catches_all and all(_does_nothing(statement) for statement in node.body):
                yield _at(source, node, "swallows every error: catch what is expected, or let it out")
        elif (
            isinstance(node, ast.Call)
            and _names(node.func) == {"suppress"}
            and any(_names(a) & broad for a in node.args)
        ):
            yield _at(source, node, "suppresses every error: name what is expected")


def sleeping_tests(source: Source) -> Iterator[Violation]:
    """Tests hand in a clock; they do not wait for the real one."""
    if not source.in_tests:
        return
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Attribute) and node.attr == "sleep" and _names(node.value) == {"time"}:
            yield _at(source, node, "time.sleep in a test: hand in a clock, or wait for the event itself")
        elif isinstance(node, ast.ImportFrom) and node.module == "time" and any(a.name == "sleep" for a in node.names):
            yield _at(source, node, "imports sleep in a test: hand in a clock, or wait for the event itself")


_WRITES = {"put", "put_if_absent", "replace", "open_output"}
_TIMELINE_WORDS = re.compile(
    r"timeline|instant_(path|file|name)|\.(requested|inflight|commit|deltacommit)\b", re.IGNORECASE
)
_DOOR = "timeline/transition"


def _words(node: ast.expr) -> Iterator[str]:
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            yield part.id
        elif isinstance(part, ast.Attribute):
            yield part.attr
        elif isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield part.value


def one_door_to_the_timeline(source: Source) -> Iterator[Violation]:
    """Only timeline/transition.py writes instant files.

    Seen as: a writing call of a store whose path argument speaks of the timeline or of an instant's file.
    The archived timeline (`history`) is not made of instant files.
    """
    if not source.in_package or source.module == _DOOR:
        return
    for node in ast.walk(source.tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _WRITES):
            continue
        words = list(_words(node.args[0])) if node.args else []
        if any(_TIMELINE_WORDS.search(word) for word in words) and not any("history" in word for word in words):
            yield _at(source, node, f"{node.func.attr} on the timeline: only {_DOOR}.py writes instant files")


_COMPLETES = "complete_instant"
_SECOND_DOOR = ("txn/publish", *(f"metadata_table/{name}" for name in ("delta_commit", "compaction", "initialize")))


def one_door_to_completion(source: Source) -> Iterator[Violation]:
    """Only txn/publish.py completes an instant of the table, and looks once more after it.

    The metadata table has a timeline of its own, which its package completes. Seen as: the name of the function,
    imported or used.
    """
    if not source.in_package or source.module.startswith("timeline/") or source.module in _SECOND_DOOR:
        return
    for node in ast.walk(source.tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.ImportFrom) else []
        if isinstance(node, ast.Attribute):
            names = [node.attr]
        if _COMPLETES in names:
            yield _at(source, node, f"{_COMPLETES}: only txn/publish.py completes an instant, go through `Publication`")


def _storage_names(function: ast.AST, owner: str) -> set[str]:
    """Local names for the store of `owner`."""
    names = set()
    for node in ast.walk(function):
        if not isinstance(node, ast.Assign):
            continue
        for target in node.targets:
            pairs = (
                zip(target.elts, node.value.elts, strict=False)
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
                else [(target, node.value)]
            )
            names |= {ast.unparse(name) for name, value in pairs if ast.unparse(value) == f"{owner}.storage"}
    return names


def guarded_changes_under_the_lock(source: Source) -> Iterator[Violation]:
    """Under the lock work goes through the environment that `locked()` gives, which looks at the lease before a change.

    Seen as: inside of `with x.locked() as held`, neither `x` nor its store is named.
    """
    if not source.in_package:
        return
    for name, function in _functions(source.tree):
        for node in ast.walk(function):
            if not isinstance(node, ast.With):
                continue
            for item in node.items:
                call = item.context_expr
                if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)):
                    continue
                if call.func.attr != "locked":
                    continue
                owner = ast.unparse(call.func.value)
                forbidden = {owner, *_storage_names(function, owner)}
                for part in (part for statement in node.body for part in ast.walk(statement)):
                    if isinstance(part, ast.Name | ast.Attribute) and ast.unparse(part) in forbidden:
                        yield _at(source, part, f"{name} names {ast.unparse(part)} under the lock: use what it gives")


_COMPONENTS = {"Engine", "LockedEnvironment", "Runtime", "Storage", "StorageHandle", "TableEnvironment", "TableLock"}


def _named_in(annotation: ast.expr | None) -> set[str]:
    return set() if annotation is None else set(re.findall(r"\w+", ast.unparse(annotation)))


def pure_plan_functions(source: Source) -> Iterator[Violation]:
    """`plan_` is pure: such a function takes values, no store, no environment, no engine and no runtime."""
    if not source.in_package:
        return
    for name, function in _functions(source.tree):
        if not name.rpartition(".")[2].lstrip("_").startswith("plan_"):
            continue
        arguments = function.args
        for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
            for component in sorted(_named_in(argument.annotation) & _COMPONENTS):
                yield _at(source, function, f"{name} takes a {component}: name it load_, or hand it what it looks at")


def settings_without_components(source: Source) -> Iterator[Violation]:
    """Settings are values; stores, locks, engines and clocks are handed in beside them."""
    if not source.in_package:
        return
    for node in ast.walk(source.tree):
        if isinstance(node, ast.ClassDef) and re.search(r"Settings|Options$", node.name):
            for field in node.body:
                if isinstance(field, ast.AnnAssign):
                    for component in sorted(_named_in(field.annotation) & (_COMPONENTS | {"Clock"})):
                        yield _at(source, field, f"{node.name} holds a {component}: settings are values")


# Where a process begins, where something is composed or made by hand, and what a process has once; everything else is
# given a runtime.
_RUNTIME_ROOTS = (
    r"runtime",
    r"cli/\w+",
    r"examples/\w+",
    r"testing/campaign",
    r"server/engines/(fork_server|minder|warm_worker|worker)",
    r"server/store/sql",
    r"table/table",
    r"storage/\w+",
    r"engine/local",
    r"txn/locks/in_process",
)


def system_runtime_at_roots(source: Source) -> Iterator[Violation]:
    """Nothing else names the system's clock, ids and threads, as a default or in its body."""
    if not source.in_package or any(re.fullmatch(root, source.module) for root in _RUNTIME_ROOTS):
        return
    for node in ast.walk(source.tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.ImportFrom) else []
        if isinstance(node, ast.Attribute):
            names = [node.attr]
        if "SYSTEM_RUNTIME" in names:
            yield _at(source, node, "names the system's runtime: let one be handed in")


def no_questions_about_the_engine(source: Source) -> Iterator[Violation]:
    """Nothing is decided by the name of an engine: what differs has a name of its own in the protocol."""
    if not source.in_package:
        return
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Compare | ast.Match):
            asked = [node.left, *node.comparators] if isinstance(node, ast.Compare) else [node.subject]
            for part in asked:
                if (
                    isinstance(part, ast.Attribute)
                    and part.attr == "name"
                    and ast.unparse(part.value).endswith("engine")
                ):
                    yield _at(source, node, "asks for the name of the engine: ask what it can do")


RULES: tuple[Rule, ...] = (
    one_door_to_completion,
    module_header,
    explicit_exports,
    module_size,
    function_size,
    import_homes,
    hudi_keys_in_config,
    banned_names,
    silent_excepts,
    sleeping_tests,
    one_door_to_the_timeline,
    guarded_changes_under_the_lock,
    pure_plan_functions,
    settings_without_components,
    system_runtime_at_roots,
    no_questions_about_the_engine,
)


def violations(rule: Rule, sources: Iterable[Source]) -> list[Violation]:
    """All violations of one rule, in order."""
    return sorted(found for source in sources for found in rule(source))
