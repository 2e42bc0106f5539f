"""File groups, file slices and the files they are made of."""

from __future__ import annotations

from dataclasses import dataclass

from tablekeeper.model.instants import RequestedTime

__all__ = ["BaseFile", "FileGroupId", "FileSlice", "LogFile", "join_path"]


def join_path(*parts: str) -> str:
    """Join path parts with `/`, leaving out empty ones (the partition of a table without partitions)."""
    return "/".join(part for part in parts if part)


@dataclass(frozen=True, slots=True, order=True)
class FileGroupId:
    """A file group: `partition` is the partition path, `""` in a table without partitions."""

    partition: str
    file_id: str

    def __str__(self) -> str:
        return join_path(self.partition, self.file_id)


@dataclass(frozen=True, slots=True)
class BaseFile:
    """One Parquet base file: all rows of its file group as of `instant`."""

    group: FileGroupId
    instant: RequestedTime
    write_token: str
    name: str
    size: int

    @property
    def path(self) -> str:
        """Path relative to the table."""
        return join_path(self.group.partition, self.name)


@dataclass(frozen=True, slots=True)
class LogFile:
    """One log file. `instant` is the time in its name: the delta commit's (version 8 on) or the base's (6)."""

    group: FileGroupId
    instant: RequestedTime
    version: int
    write_token: str
    name: str
    size: int
    is_cdc: bool = False

    @property
    def path(self) -> str:
        """Path relative to the table."""
        return join_path(self.group.partition, self.name)

    @property
    def order(self) -> tuple[str, int, tuple[int, ...], str]:
        """Sort key inside a file slice: delta instant, version, write token, suffix."""
        token = tuple(int(part) for part in self.write_token.split("-")) if self.write_token else ()
        return (self.instant.value, self.version, token, ".cdc" if self.is_cdc else "")


@dataclass(frozen=True, slots=True)
class FileSlice:
    """A base file and the log files on top of it, in merge order."""

    group: FileGroupId
    base_instant: RequestedTime
    base: BaseFile | None
    logs: tuple[LogFile, ...] = ()

    @property
    def size(self) -> int:
        """Bytes of all files of the slice."""
        return (self.base.size if self.base else 0) + sum(log.size for log in self.logs)
