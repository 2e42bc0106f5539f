"""The Table Management Service of RFC-43: one place that keeps a whole lake of tables healthy.

The timelines of the tables are the source of truth. The database is a queue with a history, and can be rebuilt from
them. The lease in the database decides who may try an operation; the heartbeat on the table decides who may act.
"""
