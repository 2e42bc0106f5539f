"""The Table Management Service of RFC-43: one place that keeps a whole lake of tables healthy.

The timelines of the tables are the truth. The database is a queue and a memory that can be rebuilt from them. The
lease in the database says who may try an operation; the heartbeat on the table says who may act.
"""
