"""The Table Management Service in simulated processes: its instances, its database, its workers, and who asks it.

The loops, the job store, the calls of writers and the code of workers run unmodified; what is made here is what lies
below and between them: a database whose transactions are steps, an engine whose jobs are processes, requests that get
lost. It needs the extra `service`; without it there are no jobs of these kinds, and nothing else is missing.
"""

from tablekeeper.testing.service import jobs, verdict

__all__ = ["jobs", "verdict"]
