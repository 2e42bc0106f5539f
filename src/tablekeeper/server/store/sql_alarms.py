"""Alarms with their deliveries, tokens and instances, in SQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, delete, exists, func, insert, select, update

from tablekeeper.server.model import Alarm, Delivery, Instance, Status, Token
from tablekeeper.server.store.database import Database
from tablekeeper.server.store.protocol import NewAlarm, NewInstance, NewToken, Page, UnknownRecordError
from tablekeeper.server.store.rows import alarm_of, json_text, token_of
from tablekeeper.server.store.schema import ALARM, DELIVERY, INSTANCE, OPERATION, TOKEN
from tablekeeper.server.store.sql_tables import is_of_tables
from tablekeeper.server.store.wanted import EVERY_TABLE, TableFilter

__all__ = ["SqlAlarms", "SqlInstances", "SqlTokens", "open_alarm_in"]

_HELD = (Status.CLAIMED, Status.RUNNING)
_MAX_KEY = 255
_MAX_TEXT = 2000
_SHOWN_INSTANCES_S = 24 * 3600.0


class SqlAlarms:
    """Alarms. The messages are queued in the transaction that opens or resolves one: none is lost, none is twice."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def open_alarm(self, alarm: NewAlarm) -> bool:
        return self._database.write(lambda connection: open_alarm_in(self._database, connection, alarm))

    def resolve_alarm(self, key: str, *, channels: Sequence[str]) -> bool:
        def work(connection: Connection) -> bool:
            is_open = select(ALARM.c.alarm_id).where(ALARM.c.open_key == key[:_MAX_KEY]).with_for_update()
            alarm_id = connection.execute(is_open).scalar_one_or_none()
            if alarm_id is None:
                return False
            connection.execute(
                update(ALARM).where(ALARM.c.alarm_id == alarm_id).values(open_key=None, resolved_ms=self._database.now)
            )
            _queue(self._database, connection, alarm_id, channels, is_resolved=True)
            return True

        return self._database.write(work)

    def list_alarms(self, page: Page, *, only_open: bool, tables: TableFilter = EVERY_TABLE) -> list[Alarm]:
        about = is_of_tables(ALARM.c.tbl_id, tables)
        query = select(ALARM).where(*about).order_by(ALARM.c.alarm_id.desc()).limit(page.limit)
        if only_open:
            query = query.where(ALARM.c.open_key.is_not(None))
        if int(page.after):
            query = query.where(ALARM.c.alarm_id < int(page.after))
        return self._database.read(lambda connection: [alarm_of(row) for row in connection.execute(query)])

    def claim_deliveries(self, limit: int, *, hold_s: float) -> list[Delivery]:
        earlier = DELIVERY.alias("earlier")
        # The news that something is resolved never overtakes the news that it happened, not even while that is retried.
        is_overtaking = exists().where(
            earlier.c.alarm_id == DELIVERY.c.alarm_id,
            earlier.c.channel == DELIVERY.c.channel,
            earlier.c.delivery_id < DELIVERY.c.delivery_id,
            earlier.c.is_delivered.is_(False),
        )
        due = (
            select(DELIVERY.c.delivery_id)
            .where(DELIVERY.c.is_delivered.is_(False), DELIVERY.c.next_ms <= self._database.now, ~is_overtaking)
            .order_by(DELIVERY.c.delivery_id)
            .limit(limit)
            .with_for_update(skip_locked=True)
        )

        def work(connection: Connection) -> list[Delivery]:
            ids = list(connection.execute(due).scalars())
            connection.execute(
                update(DELIVERY)
                .where(DELIVERY.c.delivery_id.in_(ids))
                .values(token=DELIVERY.c.token + 1, next_ms=self._database.after(hold_s))
            )
            query = (
                select(DELIVERY, ALARM)
                .join(ALARM, ALARM.c.alarm_id == DELIVERY.c.alarm_id)
                .where(DELIVERY.c.delivery_id.in_(ids))
                .order_by(DELIVERY.c.delivery_id)
            )
            return [_delivery_of(row) for row in connection.execute(query)]

        return self._database.write(work)

    def finish_delivery(self, delivery: Delivery, *, retry_in_s: float | None, note: str = "") -> None:
        changes: dict[str, Any] = {"tries": DELIVERY.c.tries + 1, "note": note[:_MAX_TEXT]}
        if retry_in_s is None:
            changes["is_delivered"] = True
        else:
            changes["next_ms"] = self._database.after(retry_in_s)
        statement = (
            update(DELIVERY)
            .where(DELIVERY.c.delivery_id == delivery.delivery_id, DELIVERY.c.token == delivery.token)
            .values(**changes)
        )
        self._database.write(lambda connection: connection.execute(statement))


def open_alarm_in(database: Database, connection: Connection, alarm: NewAlarm) -> bool:
    """Open it as a part of a transaction; False if one of its key is open."""
    key = alarm.key[:_MAX_KEY]
    is_open = select(ALARM.c.alarm_id).where(ALARM.c.open_key == key)
    if connection.execute(is_open).scalar_one_or_none() is not None:
        return False
    statement = insert(ALARM).values(
        alarm_key=key,
        open_key=key,
        rule=alarm.rule,
        text=alarm.text[:_MAX_TEXT],
        opened_ms=database.now,
        tbl_id=alarm.table_id,
        operation_id=alarm.operation_id,
    )
    alarm_id = database.insert_or_none(connection, statement)
    if alarm_id is None:
        return False
    _queue(database, connection, alarm_id, alarm.channels, is_resolved=False)
    return True


def _queue(
    database: Database, connection: Connection, alarm_id: int, channels: Sequence[str], *, is_resolved: bool
) -> None:
    for channel in channels:
        connection.execute(
            insert(DELIVERY).values(
                alarm_id=alarm_id,
                channel=channel,
                is_resolved=is_resolved,
                is_delivered=False,
                tries=0,
                token=0,
                next_ms=database.now,
                note="",
            )
        )


class SqlTokens:
    """Bearer tokens."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add_token(self, token: NewToken) -> Token:
        scopes = {"databases": list(token.databases), "path_prefixes": list(token.path_prefixes)}
        statement = insert(TOKEN).values(
            name=token.name,
            digest=token.digest,
            role=int(token.role),
            scopes=json_text(scopes),
            created_ms=self._database.now,
        )

        def work(connection: Connection) -> Token:
            connection.execute(statement)
            return token_of(connection.execute(select(TOKEN).where(TOKEN.c.digest == token.digest)).one())

        return self._database.write(work)

    def find_token(self, digest: str) -> Token | None:
        query = select(TOKEN).where(TOKEN.c.digest == digest, TOKEN.c.revoked_ms.is_(None))
        row = self._database.read(lambda connection: connection.execute(query).one_or_none())
        return None if row is None else token_of(row)

    def list_tokens(self) -> list[Token]:
        query = select(TOKEN).order_by(TOKEN.c.token_id)
        return self._database.read(lambda connection: [token_of(row) for row in connection.execute(query)])

    def revoke_token(self, token_id: int) -> None:
        def work(connection: Connection) -> None:
            found = connection.execute(select(TOKEN.c.token_id).where(TOKEN.c.token_id == token_id)).one_or_none()
            if found is None:
                raise UnknownRecordError(f"there is no token with the number {token_id}")
            connection.execute(
                update(TOKEN)
                .where(TOKEN.c.token_id == token_id, TOKEN.c.revoked_ms.is_(None))
                .values(revoked_ms=self._database.now)
            )

        self._database.write(work)

    def has_tokens(self) -> bool:
        query = select(TOKEN.c.token_id).where(TOKEN.c.revoked_ms.is_(None)).limit(1)
        return self._database.read(lambda connection: connection.execute(query).one_or_none() is not None)


class SqlInstances:
    """Running services."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def now_ms(self) -> int:
        return self._database.load_now_ms()

    def beat(self, instance: NewInstance, *, is_draining: bool = False) -> None:
        def work(connection: Connection) -> None:
            mine = INSTANCE.c.instance_id == instance.instance_id
            known = connection.execute(select(INSTANCE.c.instance_id).where(mine)).scalar_one_or_none()
            if known is not None:
                now = self._database.now
                connection.execute(update(INSTANCE).where(mine).values(seen_ms=now, is_draining=is_draining))
                return
            connection.execute(
                insert(INSTANCE).values(
                    instance_id=instance.instance_id,
                    host=instance.host,
                    pid=instance.pid,
                    address=instance.address,
                    slots=instance.slots,
                    started_ms=self._database.now,
                    seen_ms=self._database.now,
                    is_draining=is_draining,
                )
            )

        self._database.write(work)

    def replace_instances(self, instance: NewInstance) -> None:
        is_there = (INSTANCE.c.host == instance.host, INSTANCE.c.address == instance.address)
        others = delete(INSTANCE).where(*is_there, INSTANCE.c.instance_id != instance.instance_id)
        if instance.address:
            self._database.write(lambda connection: connection.execute(others))

    def list_instances(self) -> list[Instance]:
        held = (
            select(OPERATION.c.instance_id, func.count().label("running"))
            .where(OPERATION.c.status.in_(_HELD))
            .group_by(OPERATION.c.instance_id)
        )
        shown = select(INSTANCE).where(INSTANCE.c.seen_ms > self._database.after(-_SHOWN_INSTANCES_S))

        def work(connection: Connection) -> list[Instance]:
            running = {row.instance_id: row.running for row in connection.execute(held)}
            rows = connection.execute(shown.order_by(INSTANCE.c.started_ms, INSTANCE.c.instance_id))
            return [Instance(**row._mapping, running=running.get(row.instance_id, 0)) for row in rows]

        return self._database.read(work)

    def remove_instance(self, instance_id: str) -> None:
        statement = delete(INSTANCE).where(INSTANCE.c.instance_id == instance_id)
        self._database.write(lambda connection: connection.execute(statement))


def _delivery_of(row: Any) -> Delivery:
    fields = row._mapping
    alarm = Alarm(
        alarm_id=fields[ALARM.c.alarm_id],
        key=fields[ALARM.c.alarm_key],
        rule=fields[ALARM.c.rule],
        text=fields[ALARM.c.text],
        opened_ms=fields[ALARM.c.opened_ms],
        resolved_ms=fields[ALARM.c.resolved_ms],
        table_id=fields[ALARM.c.tbl_id],
        operation_id=fields[ALARM.c.operation_id],
    )
    return Delivery(
        delivery_id=fields[DELIVERY.c.delivery_id],
        alarm=alarm,
        channel=fields[DELIVERY.c.channel],
        is_resolved=bool(fields[DELIVERY.c.is_resolved]),
        tries=fields[DELIVERY.c.tries],
        token=fields[DELIVERY.c.token],
    )
