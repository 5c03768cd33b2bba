"""The errors that a test gets. Both say what to do."""

from __future__ import annotations


class Misused(Exception):
    """The test asks for something that cannot be."""


class Stuck(AssertionError):
    """A task does not come to its end, however long one waits."""
