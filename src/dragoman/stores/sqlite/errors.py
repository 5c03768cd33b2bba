"""Why an embedded store does not open. The sentences are for people: each ends with what to do."""

from __future__ import annotations


class StoreRefused(Exception):
    """The data cannot be used as they are. Nothing was changed."""


class StoreInUse(StoreRefused):
    """Another hub works on this data directory."""

    def __init__(self, directory: str, pid: int | None) -> None:
        who = f"process {pid}" if pid else "another process"
        super().__init__(
            f"the data directory {directory} is in use by {who}: one hub at a time may use it; "
            "stop that hub or choose another data directory"
        )
        self.directory = directory
        self.pid = pid
