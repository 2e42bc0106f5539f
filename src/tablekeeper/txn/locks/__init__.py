"""The table lock: one protocol, and a kind of lock for every kind of store."""

from tablekeeper.txn.locks.protocol import Lease, LockHolder, TableLock

__all__ = ["Lease", "LockHolder", "TableLock"]
