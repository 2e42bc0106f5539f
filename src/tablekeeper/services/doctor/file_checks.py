"""What the files show: data that no commit names, a metadata table that lists something else, things left behind."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import partial

from tablekeeper.errors import CorruptTableError, NotFoundError, TablekeeperError
from tablekeeper.format.commit_metadata import decode_written_paths
from tablekeeper.format.data_files import decode_base_name, decode_log_name
from tablekeeper.metadata_table.listing import open_metadata_table
from tablekeeper.model import FileGroupId, FileSlice, Instant, RequestedTime, State
from tablekeeper.services.doctor.explained import load_rolled_back
from tablekeeper.services.doctor.report import Finding, Repair, RepairKind, Severity
from tablekeeper.services.doctor.view import TableView, load_view
from tablekeeper.snapshot.integrity import files_of
from tablekeeper.snapshot.slices import SliceRules, decode_partition_files, plan_slices
from tablekeeper.snapshot.snapshot import load_replaced
from tablekeeper.storage import FileInfo
from tablekeeper.timeline import instant_path, load_content, load_written_paths
from tablekeeper.timeline.history import archived_completions, load_history
from tablekeeper.timeline.properties_file import PROPERTIES_FILE

__all__ = ["check_data_files", "check_leftovers", "check_metadata_table", "slice_rules", "visible_slices"]

_ORPHAN = "orphan-files"
_DAY_MS = 86_400_000
_SCRATCH = (".hoodie/.tablekeeper/staging", ".hoodie/.tablekeeper/tmp")
_KEPT = "publish.lock"
_BACKUP = f"{PROPERTIES_FILE}.backup"
_MISSING, _GONE, _CHANGED = "are missing from it", "that it lists do not exist", "have another size"
_DIFFERENCES = (_MISSING, _GONE, _CHANGED)
_UNNAMED = (
    "its commit does not name them: a task ran twice, or an earlier attempt left them. Readers that list directories "
    "take them for committed, and may see rows twice."
)
_OF_NOBODY = (
    "no write of that time is on the timeline: it was rolled back. They become visible when the timeline has moved "
    "past them."
)
_OF_WAITING_PLAN = (
    "its plan waits to be executed: an earlier attempt left them. They become visible when the plan completes."
)


def check_data_files(view: TableView) -> Iterator[Finding]:
    """Files in partitions that belong to no write."""
    if view.environment.config.version < 8:
        return
    by_instant: dict[RequestedTime, list[FileInfo]] = defaultdict(list)
    for file in view.files:
        instant = _instant_of(file)
        if instant is not None:
            by_instant[instant].append(file)
    known, broken = _load_written(view)
    yield from broken
    pending = {i.requested_at: i for i in view.timeline.pending}
    rolled_back: frozenset[RequestedTime] | None = None
    archived = {t: files for t, files in by_instant.items() if t not in known and view.timeline.is_archived(t)}
    for instant, files in sorted(by_instant.items(), key=lambda item: item[0].value):
        if instant in archived:
            continue
        if instant in pending:
            waits = pending[instant].action.is_plan and pending[instant].state is State.REQUESTED
            if waits and not view.heartbeats.is_active(instant):
                strange = [f for f in files if not _may_be_old(view, f)]
                yield from _orphans(view, instant, strange, _OF_WAITING_PLAN)
        elif instant in known:
            yield from _check_against(view, instant, known[instant], files)
        else:
            rolled_back = load_rolled_back(view) if rolled_back is None else rolled_back
            if instant in rolled_back:
                yield from _orphans(view, instant, files, _OF_NOBODY)
            elif view.timeline.completed_writes:
                yield _unexplained(instant, files)
    yield from _check_archived(view, archived)


def _check_against(
    view: TableView, instant: RequestedTime, named: frozenset[str] | None, files: list[FileInfo]
) -> Iterator[Finding]:
    """The files of a completed write, of which its commit names some; None if the commit cannot be read."""
    if named is None:
        return
    strange = [f for f in files if f.path not in named and not _may_be_old(view, f)]
    names = {path.rpartition("/")[2] for path in named}
    moved = tuple(f.path for f in strange if f.name in names)
    if moved:
        yield _misplaced(instant, moved)
    unnamed = [f for f in strange if f.name not in names]
    if unnamed and not _is_plausible(view, instant, named):
        yield _misnamed(instant, unnamed)
    else:
        yield from _orphans(view, instant, unnamed, _UNNAMED)


def check_metadata_table(view: TableView) -> Iterator[Finding]:
    """The metadata table must list what lies in the directories."""
    config = view.environment.config
    if not config.has_metadata_table or config.version < 8:
        return
    repair = Repair(RepairKind.SWITCH_OFF_METADATA_TABLE, "")
    finding = partial(Finding, "stale-metadata-table", Severity.ERROR, ".hoodie/metadata", repair=repair)
    advice = "Switch it off: readers then list directories, and Java's next write builds it anew."
    try:
        difference = _difference(view)
        if difference:
            # A commit between the two listings looks the same; what two looks see is really there.
            second = _difference(load_view(view.environment, view.settings))
            difference = {path: what for path, what in difference.items() if second.get(path) == what}
    except TablekeeperError as error:
        yield finding(f"It cannot be read: {error}", advice)
        return
    if difference:
        counts = {what: list(difference.values()).count(what) for what in _DIFFERENCES}
        meaning = ", ".join(f"{count} files {what}" for what, count in counts.items() if count)
        yield finding(f"Readers that use it get wrong rows or fail: {meaning}.", advice, paths=tuple(difference))


def check_leftovers(view: TableView) -> Iterator[Finding]:
    """Scratch files of dead processes, and a change of the properties that stopped half way."""
    storage = view.environment.storage
    old = [
        file.path
        for root in _SCRATCH
        for file in storage.walk(root)
        if file.name != _KEPT and view.now_ms - file.modified_ms > _DAY_MS
    ]
    if old:
        yield Finding(
            "leftovers",
            Severity.WARNING,
            ".hoodie/.tablekeeper",
            f"{len(old)} files that running writes keep there, older than a day: their writers are gone.",
            "They only take space and can be removed.",
            paths=tuple(old),
            repair=Repair(RepairKind.DELETE_LEFTOVERS, ".hoodie/.tablekeeper", tuple(old)),
        )
    if storage.stat(_BACKUP) is not None:
        yield Finding(
            "half-done-properties-change",
            Severity.WARNING,
            _BACKUP,
            "A change of the table's properties is going on, or died half way. One whole copy is there.",
            "The next change finishes or undoes it.",
            repair=Repair(RepairKind.FINISH_PROPERTIES, ""),
        )


def visible_slices(view: TableView, files: Mapping[str, list[tuple[str, int]]]) -> list[FileSlice]:
    """The newest slice of every file group that readers see."""
    rules = slice_rules(view)
    groups: dict[FileGroupId, tuple[FileSlice, ...]] = {}
    for partition, names in files.items():
        groups.update(plan_slices(decode_partition_files(partition, names), rules))
    return [slices[0] for slices in groups.values()]


def slice_rules(view: TableView) -> SliceRules:
    """What decides about slices now. A replace commit that cannot be read, which is reported, hides nothing."""
    environment = view.environment
    try:
        replaced = load_replaced(environment.storage, environment.config, view.timeline, runtime=environment.runtime)
    except CorruptTableError:
        replaced = {}
    return SliceRules(
        timeline=view.timeline,
        version=environment.config.version,
        replaced=replaced,
        archived_completion=archived_completions(environment.storage, environment.config),
    )


def _visible_files(view: TableView, files: Mapping[str, list[tuple[str, int]]]) -> dict[str, int]:
    """Path and size of every file in a slice that readers see."""
    return {path: size for each in visible_slices(view, files) for path, size in files_of(each).items()}


def _difference(view: TableView) -> dict[str, str]:
    """Visible files on which the metadata table and the directories disagree, and how."""
    environment = view.environment
    table = open_metadata_table(environment.storage, environment.config, view.timeline, runtime=environment.runtime)
    if table is None:
        raise NotFoundError(".hoodie/metadata")
    there: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for file in view.files:
        there[_partition(file)].append((file.name, file.size))
    seen = _visible_files(view, there)
    told = _visible_files(view, table.files(sorted({*there, *table.partitions()})))
    different = dict.fromkeys(seen.keys() - told.keys(), _MISSING)
    different |= dict.fromkeys(told.keys() - seen.keys(), _GONE)
    different |= {path: _CHANGED for path in seen.keys() & told.keys() if seen[path] != told[path]}
    return dict(sorted(different.items()))


def _orphans(view: TableView, instant: RequestedTime, files: list[FileInfo], why: str) -> Iterator[Finding]:
    old = tuple(f.path for f in files if view.is_old(f))
    young = tuple(f.path for f in files if not view.is_old(f))
    meaning = f"{{}} data files of {instant}, and {why}"
    if old:
        yield Finding(
            _ORPHAN,
            Severity.ERROR,
            instant.value,
            meaning.format(len(old)),
            "They can be deleted.",
            paths=old,
            repair=Repair(RepairKind.DELETE_FILES, instant.value, old),
        )
    if young:
        yield Finding(
            _ORPHAN,
            Severity.WARNING,
            instant.value,
            meaning.format(len(young)),
            f"They are younger than {view.settings.safe_age_s:.0f} s, so that a task may still be running. Look again "
            "later.",
            paths=young,
        )


def _misplaced(instant: RequestedTime, paths: tuple[str, ...]) -> Finding:
    return Finding(
        "misplaced-files",
        Severity.ERROR,
        instant.value,
        f"{len(paths)} data files of {instant} lie in another directory than the one that it wrote them to: the "
        "directory was renamed or copied. Rows are missing, or are read twice.",
        "Move them back. Delete them by hand only if the files that the commit names are where they were.",
        paths=paths,
    )


def _is_plausible(view: TableView, instant: RequestedTime, named: frozenset[str]) -> bool:
    """Whether the files that a commit names exist, or were cleaned because a newer version or group stands in.

    A damaged name looks like a lost file next to a stray one, which may be what readers need.
    """
    missing = named - {file.path for file in view.files}
    if not missing:
        return True
    bases = ((_partition(file), decode_base_name(file.name)) for file in view.files)
    later = {(where, name.file_id) for where, name in bases if name is not None and name.instant > instant.value}
    later |= {(group.partition, group.file_id) for group in slice_rules(view).replaced}
    for path in missing:
        partition, _, text = path.rpartition("/")
        written = decode_base_name(text) or decode_log_name(text)
        if written is None or written.instant != instant.value or (partition, written.file_id) not in later:
            return False
    return True


def _misnamed(instant: RequestedTime, files: list[FileInfo]) -> Finding:
    return Finding(
        "unexplained-files",
        Severity.ERROR,
        instant.value,
        f"{len(files)} data files of {instant}, which its commit does not name, while files that it names are missing: "
        "the commit is damaged, or files were renamed.",
        "Bring the commit or the files back from a backup. Delete the data files by hand only if nobody misses their "
        "rows.",
        paths=tuple(file.path for file in files),
    )


def _unexplained(instant: RequestedTime, files: list[FileInfo]) -> Finding:
    return Finding(
        "unexplained-files",
        Severity.ERROR,
        instant.value,
        f"{len(files)} data files of {instant}, which is not on the timeline, and no rollback tells what became of it: "
        "its instant was lost, or the files were copied here. Rows are missing, or will appear.",
        "Bring the instant's files back from a backup. Delete the data files by hand only if nobody misses their rows.",
        paths=tuple(file.path for file in files),
    )


def _check_archived(view: TableView, files: Mapping[RequestedTime, list[FileInfo]]) -> Iterator[Finding]:
    """Files older than the active timeline count as committed; the history knows whether they were."""
    if not files:
        return
    environment = view.environment
    history = {a.instant.requested_at: a for a in load_history(environment.storage, environment.config)}
    if not history:
        return
    oldest = min(history)
    for instant, group in sorted(files.items(), key=lambda item: item[0].value):
        if instant < oldest:
            continue
        known = history.get(instant)
        if known is None:
            strange = [f.path for f in group]
        else:
            named = decode_written_paths(known.metadata or b"", file=f"archived {known.instant}")
            strange = [f.path for f in group if named and f.path not in named and decode_base_name(f.name) is not None]
        if strange:
            yield Finding(
                "resurrected-files",
                Severity.ERROR,
                instant.value,
                f"{len(strange)} files older than the active timeline count as committed, but the archived timeline "
                "has no commit that wrote them: rows of a failed write may be visible.",
                "Compare the rows with their source before deleting the files; nothing is deleted here by itself.",
                paths=tuple(strange),
            )


def _load_written(view: TableView) -> tuple[dict[RequestedTime, frozenset[str] | None], list[Finding]]:
    """What each completed write on the active timeline says it wrote; None where that cannot be read."""
    environment = view.environment
    broken: list[Finding] = []

    def load(instant: Instant) -> frozenset[str] | None:
        path = instant_path(environment.config, instant)
        try:
            if not load_content(environment.storage, environment.config, instant):
                raise CorruptTableError(file=path, reason="the file is empty")
            return load_written_paths(environment.storage, environment.config, instant)
        except TablekeeperError as error:
            meaning, advice = f"What this commit did cannot be read: {error}", "Restore the file from a backup."
            broken.append(Finding("unreadable-commit", Severity.ERROR, path, meaning, advice))
            return None

    writes = view.timeline.completed_writes
    paths = environment.runtime.threads.map(load, writes)
    return {i.requested_at: each for i, each in zip(writes, paths, strict=True)}, broken


def _may_be_old(view: TableView, file: FileInfo) -> bool:
    """A log named after the base file below it: the commit of that time never wrote it."""
    return decode_log_name(file.name) is not None and view.environment.config.may_have_old_log_names


def _instant_of(file: FileInfo) -> RequestedTime | None:
    name = decode_base_name(file.name) or decode_log_name(file.name)
    return RequestedTime(name.instant) if name is not None else None


def _partition(file: FileInfo) -> str:
    return file.path.rpartition("/")[0]
