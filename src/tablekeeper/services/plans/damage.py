"""Plans that cannot succeed, because files that they rewrite are damaged.

A plan that is neither cancellable nor mutable stays until it is executed, because writers and other services rely on
that. If its files are damaged, it would stay forever and block everything that waits for it: therefore it may be
removed.
"""

from __future__ import annotations

from tablekeeper.errors import CorruptTableError
from tablekeeper.model import BaseFile, Instant, LogFile
from tablekeeper.read.damage import find_base_damage, find_log_damage
from tablekeeper.read.log_changes import BlockVisibility
from tablekeeper.services.plans.foreign_plans import load_executable_plan
from tablekeeper.services.plans.input_check import refuse_damaged_input
from tablekeeper.timeline.plans import was_rolled_back
from tablekeeper.txn.environment import TableEnvironment

__all__ = ["find_plan_damage"]


def find_plan_damage(environment: TableEnvironment, instant: Instant) -> str:
    """Why the pending plan cannot be executed; `""` if no damage is known.

    The contents of its files are read only if an attempt has failed before: that takes as long as the attempt.
    """
    timeline = environment.load_timeline()
    try:
        plan = load_executable_plan(environment, instant)
        refuse_damaged_input(environment, plan, instant, timeline)
    except CorruptTableError as error:
        return str(error)
    if not was_rolled_back(environment.storage, environment.config, timeline, instant.requested_at):
        return ""

    visibility = BlockVisibility(may_share_files=environment.config.may_have_old_log_names)

    def look(file: BaseFile | LogFile) -> str:
        if isinstance(file, BaseFile):
            found = find_base_damage(environment.storage, file)
        else:
            found = find_log_damage(environment.storage, file, visibility=visibility, with_rows=True)
        return f"{file.path}: {found}" if found else ""

    slices = [each for work in plan.work for each in work.slices]
    files: list[BaseFile | LogFile] = [log for each in slices for log in each.logs]
    files += [each.base for each in slices if each.base is not None]
    return next(filter(None, environment.runtime.threads.map(look, files)), "")
