"""The timeline: instants, loaded, moved from state to state, and their history."""

from tablekeeper.timeline.load import (
    following_time,
    format_time,
    instant_path,
    later_time,
    load_commit_metadata,
    load_content,
    load_instant_files,
    load_newest_time,
    load_timeline,
    load_written_paths,
    parse_time,
    time_bounds,
)
from tablekeeper.timeline.timeline import Timeline
from tablekeeper.timeline.transition import (
    complete_instant,
    create_requested,
    publish_again,
    remove_instant_files,
    start_inflight,
    unpublish_instant,
)

__all__ = [
    "Timeline",
    "complete_instant",
    "create_requested",
    "following_time",
    "format_time",
    "instant_path",
    "later_time",
    "load_commit_metadata",
    "load_content",
    "load_instant_files",
    "load_newest_time",
    "load_timeline",
    "load_written_paths",
    "parse_time",
    "publish_again",
    "remove_instant_files",
    "start_inflight",
    "time_bounds",
    "unpublish_instant",
]
