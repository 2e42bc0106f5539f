"""Registered tables, their policies and the looks at their timelines, in SQL."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, and_, case, delete, func, insert, or_, select, update

from tablekeeper.errors import InvalidRequestError
from tablekeeper.server.model import ManagedTable, Status, TableFacts
from tablekeeper.server.policy import DEFAULT_POLICY, Policy, parse_policy
from tablekeeper.server.store.database import Database
from tablekeeper.server.store.protocol import NewTable, Page, TableFilter, UnknownRecordError
from tablekeeper.server.store.rows import actions_text, facts_text, json_text, path_digest, table_of
from tablekeeper.server.store.schema import DATABASE_POLICY, EVENT, OPERATION, TBL, TBL_STATE
from tablekeeper.server.store.sql_hastening import follow_table, try_before_windows

__all__ = ["JOINED", "SqlTables", "is_of_tables", "table_conditions"]

JOINED = TBL.join(TBL_STATE, TBL.c.id == TBL_STATE.c.tbl_id)
"""A registered table with its state."""
_HELD = (Status.CLAIMED, Status.RUNNING)
_LOOKS_SPREAD_S = 300


def _tables() -> Select[Any]:
    return select(TBL, TBL_STATE).select_from(JOINED)


class SqlTables:
    """The part of the job store that is about tables."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def register_table(self, table: NewTable) -> tuple[ManagedTable, bool]:
        table = replace(table, base_path=table.base_path.rstrip("/") or "/")

        def work(connection: Connection) -> tuple[ManagedTable, bool]:
            known = self._find(connection, TBL.c.db_name == table.db_name, TBL.c.table_name == table.table_name)
            self._refuse_taken_path(connection, table, known)
            if known is None:
                new_id = self._database.insert_or_none(connection, insert(TBL).values(**_registration(table)))
                if new_id is not None:
                    state = insert(TBL_STATE).values(**self._first_state(new_id, table))
                    if self._database.insert_or_none(connection, state) is None:
                        raise InvalidRequestError(f"{table.base_path} was registered under another name meanwhile")
                    return self._load(connection, new_id), True
                known = self._find(connection, TBL.c.db_name == table.db_name, TBL.c.table_name == table.table_name)
            if known is None:
                raise UnknownRecordError(f"table {table.db_name}.{table.table_name} was removed meanwhile; try again")
            self._update_registration(connection, known, table)
            return self._load(connection, known.table_id), False

        return self._database.write(work)

    def load_table(self, table_id: int) -> ManagedTable:
        return self._database.read(lambda connection: self._load(connection, table_id))

    def find_table(self, db_name: str, table_name: str) -> ManagedTable | None:
        return self._database.read(
            lambda connection: self._find(connection, TBL.c.db_name == db_name, TBL.c.table_name == table_name)
        )

    def find_table_by_path(self, base_path: str) -> ManagedTable | None:
        digest = path_digest(base_path.rstrip("/") or "/")
        return self._database.read(lambda connection: self._find(connection, TBL_STATE.c.path_digest == digest))

    def list_tables(self, wanted: TableFilter, page: Page) -> list[ManagedTable]:
        query = (
            _tables().where(TBL.c.id > int(page.after), *table_conditions(wanted)).order_by(TBL.c.id).limit(page.limit)
        )
        return self._database.read(lambda connection: [table_of(row) for row in connection.execute(query)])

    def change_policy(self, table_id: int, policy: Policy) -> ManagedTable:
        text, now = json_text(policy.to_json()), self._database.now

        def work(connection: Connection) -> ManagedTable:
            is_this = TBL_STATE.c.tbl_id == table_id
            connection.execute(update(TBL_STATE).where(is_this).values(policy=text, look_at_ms=now, idle_looks=0))
            try_before_windows(connection, now, OPERATION.c.tbl_id == table_id)
            return self._load(connection, table_id)

        return self._database.write(work)

    def set_paused(self, table_id: int, *, is_paused: bool) -> ManagedTable:
        return self._change(table_id, is_paused=is_paused, look_at_ms=self._database.now)

    def quarantine_table(self, table_id: int, reason: str) -> ManagedTable:
        return self._change(table_id, quarantine=reason, failed_looks=0, look_at_ms=self._database.now)

    def remove_table(self, table_id: int) -> None:
        def work(connection: Connection) -> None:
            table = self._load(connection, table_id)
            held = select(func.count()).where(OPERATION.c.tbl_id == table_id, OPERATION.c.status.in_(_HELD))
            if connection.execute(held).scalar_one():
                raise InvalidRequestError(f"{table.name} has running operations: cancel them, or wait for their end")
            connection.execute(delete(OPERATION).where(OPERATION.c.tbl_id == table_id))
            # Another table may get this number, and who sees that one must not read about this one.
            connection.execute(delete(EVENT).where(EVENT.c.tbl_id == table_id))
            connection.execute(delete(TBL_STATE).where(TBL_STATE.c.tbl_id == table_id))
            connection.execute(delete(TBL).where(TBL.c.id == table_id))

        self._database.write(work)

    def default_policy(self, db_name: str) -> Policy:
        query = select(DATABASE_POLICY.c.policy).where(DATABASE_POLICY.c.db_name == db_name)
        found = self._database.read(lambda connection: connection.execute(query).scalar_one_or_none())
        return parse_policy(json.loads(found)).over(DEFAULT_POLICY) if found is not None else DEFAULT_POLICY

    def set_default_policy(self, db_name: str, policy: Policy) -> None:
        text = json_text(policy.to_json())

        def work(connection: Connection) -> None:
            changed = connection.execute(
                update(DATABASE_POLICY).where(DATABASE_POLICY.c.db_name == db_name).values(policy=text)
            )
            # MariaDB counts rows that a change left as they were as not changed: the insert then finds the key taken.
            if not changed.rowcount:
                self._database.insert_or_none(connection, insert(DATABASE_POLICY).values(db_name=db_name, policy=text))
            of_database = select(TBL.c.id).where(TBL.c.db_name == db_name)
            # Spread over some minutes: a large database is not to hold up looks at tables that have commits.
            soon = self._database.now + TBL_STATE.c.tbl_id % _LOOKS_SPREAD_S * 1000
            is_later = (TBL_STATE.c.tbl_id.in_(of_database), TBL_STATE.c.look_at_ms > soon)
            connection.execute(update(TBL_STATE).where(*is_later).values(look_at_ms=soon))
            try_before_windows(connection, self._database.now, OPERATION.c.tbl_id.in_(of_database))

        self._database.write(work)

    def effective_policy(self, table: ManagedTable) -> Policy:
        registered = Policy(services=table.action_types or None)
        return parse_policy(table.policy).over(registered).over(self.default_policy(table.db_name))

    def notice_commit(self, table_id: int, *, delay_s: float = 0.0) -> None:
        soon = self._database.after(delay_s)
        changes = {
            "look_at_ms": case((TBL_STATE.c.look_at_ms > soon, soon), else_=TBL_STATE.c.look_at_ms),
            "is_noticed": True,
            "idle_looks": 0,
        }
        self._database.write(
            lambda connection: connection.execute(
                update(TBL_STATE).where(TBL_STATE.c.tbl_id == table_id).values(**changes)
            )
        )

    def claim_looks(self, limit: int, *, hold_s: float) -> list[ManagedTable]:
        now = self._database.now
        due = (
            select(TBL_STATE.c.tbl_id)
            .where(
                TBL_STATE.c.look_at_ms <= now,
                TBL_STATE.c.hold_until_ms <= now,
                TBL_STATE.c.is_paused.is_(False),
                TBL_STATE.c.quarantine == "",
            )
            .order_by(TBL_STATE.c.look_at_ms)
            .limit(limit)
            .with_for_update(skip_locked=True)
        )

        def work(connection: Connection) -> list[ManagedTable]:
            ids = list(connection.execute(due).scalars())
            if not ids:
                return []
            connection.execute(
                update(TBL_STATE)
                .where(TBL_STATE.c.tbl_id.in_(ids))
                .values(hold_until_ms=self._database.after(hold_s), is_noticed=False)
            )
            found = {row.id: table_of(row) for row in connection.execute(_tables().where(TBL.c.id.in_(ids)))}
            return [found[each] for each in ids if each in found]

        return self._database.write(work)

    def finish_look(self, table_id: int, facts: TableFacts | None, *, next_in_s: float, is_idle: bool) -> None:
        later = self._database.after(next_in_s)
        # Whatever was noticed during the look may have come too late for it.
        again = and_(TBL_STATE.c.is_noticed.is_(True), TBL_STATE.c.look_at_ms < later)
        changes: dict[str, Any] = {
            "look_at_ms": case((again, TBL_STATE.c.look_at_ms), else_=later),
            "hold_until_ms": 0,
            "failed_looks": TBL_STATE.c.failed_looks + 1 if facts is None else 0,
            "idle_looks": TBL_STATE.c.idle_looks + 1 if is_idle else 0,
        }
        if facts is not None:
            changes |= _facts_columns(facts)
        self._database.write(
            lambda connection: connection.execute(
                update(TBL_STATE).where(TBL_STATE.c.tbl_id == table_id).values(**changes)
            )
        )

    def _change(self, table_id: int, **changes: Any) -> ManagedTable:
        def work(connection: Connection) -> ManagedTable:
            connection.execute(update(TBL_STATE).where(TBL_STATE.c.tbl_id == table_id).values(**changes))
            return self._load(connection, table_id)

        return self._database.write(work)

    def _load(self, connection: Connection, table_id: int) -> ManagedTable:
        found = self._find(connection, TBL.c.id == table_id)
        if found is None:
            raise UnknownRecordError(f"there is no table with the number {table_id}")
        return found

    @staticmethod
    def _find(connection: Connection, *conditions: ColumnElement[bool]) -> ManagedTable | None:
        row = connection.execute(_tables().where(*conditions)).one_or_none()
        return None if row is None else table_of(row)

    def _refuse_taken_path(self, connection: Connection, table: NewTable, known: ManagedTable | None) -> None:
        other = self._find(connection, TBL_STATE.c.path_digest == path_digest(table.base_path))
        if other is not None and (known is None or other.table_id != known.table_id):
            raise InvalidRequestError(f"{table.base_path} is registered as {other.name} already")

    def _first_state(self, table_id: int, table: NewTable) -> dict[str, Any]:
        return {
            "tbl_id": table_id,
            "path_digest": path_digest(table.base_path),
            "policy": json_text(table.policy.to_json() if table.policy is not None else {}),
            "is_paused": False,
            "quarantine": "",
            "look_at_ms": self._database.now,
            "hold_until_ms": 0,
            "is_noticed": False,
            "idle_looks": 0,
            "failed_looks": 0,
            **_facts_columns(TableFacts()),
        }

    def _update_registration(self, connection: Connection, known: ManagedTable, table: NewTable) -> None:
        connection.execute(update(TBL).where(TBL.c.id == known.table_id).values(**_registration(table)))
        follow_table(connection, known, table)
        state: dict[str, Any] = {"path_digest": path_digest(table.base_path)}
        if table.policy is not None:
            state["policy"] = json_text(table.policy.to_json())
            try_before_windows(connection, self._database.now, OPERATION.c.tbl_id == known.table_id)
        connection.execute(update(TBL_STATE).where(TBL_STATE.c.tbl_id == known.table_id).values(**state))


def _facts_columns(facts: TableFacts) -> dict[str, Any]:
    return {
        "facts": facts_text(facts),
        "behind_since_ms": facts.behind_since_ms,
        "commits_behind": facts.commits_behind,
        "pending_plans": facts.pending_plans,
        "read_amplification": facts.read_amplification,
    }


def _registration(table: NewTable) -> dict[str, Any]:
    return {
        "db_name": table.db_name,
        "table_name": table.table_name,
        "base_path": table.base_path,
        "owner": table.owner,
        "queue": table.queue,
        "action_types": actions_text(table.action_types),
        "priority": str(table.priority),
    }


def table_conditions(wanted: TableFilter) -> list[ColumnElement[bool]]:
    """What a filter means in SQL."""
    conditions: list[ColumnElement[bool]] = []
    for column, value in ((TBL.c.db_name, wanted.db_name), (TBL.c.queue, wanted.queue), (TBL.c.owner, wanted.owner)):
        if value is not None:
            conditions.append(column == value)
    if wanted.is_paused is not None:
        conditions.append(TBL_STATE.c.is_paused.is_(wanted.is_paused))
    if wanted.is_quarantined is not None:
        conditions.append(TBL_STATE.c.quarantine != "" if wanted.is_quarantined else TBL_STATE.c.quarantine == "")
    if wanted.is_behind is not None:
        is_behind = TBL_STATE.c.behind_since_ms.is_not(None)
        conditions.append(is_behind if wanted.is_behind else ~is_behind)
    if wanted.databases:
        conditions.append(TBL.c.db_name.in_(wanted.databases))
    if wanted.path_prefixes:
        conditions.append(or_(*map(_lies_below, wanted.path_prefixes)))
    if wanted.search:
        text = wanted.search.lower()
        name = func.lower(TBL.c.db_name.concat(".").concat(TBL.c.table_name))
        conditions.append(
            or_(name.contains(text, autoescape=True), func.lower(TBL.c.base_path).contains(text, autoescape=True))
        )
    return conditions


def is_of_tables(table_id: ColumnElement[int], wanted: TableFilter) -> list[ColumnElement[bool]]:
    """That a record with the number of a table is about one of those; nothing where all are wanted."""
    conditions = table_conditions(wanted)
    return [table_id.in_(select(TBL.c.id).select_from(JOINED).where(*conditions))] if conditions else []


def _lies_below(prefix: str) -> ColumnElement[bool]:
    # Not LIKE, which takes no note of case on SQLite.
    below = prefix.rstrip("/") + "/"
    return or_(TBL.c.base_path == prefix, func.substr(TBL.c.base_path, 1, len(below)) == below)
