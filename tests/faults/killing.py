"""At which steps a hub is killed, and whether what it was doing had happened by then: a commit is the border."""

from __future__ import annotations

HAPPENED = {
    "before_commit": False,
    "writer:before_commit": False,
    "writer:after_commit": True,
    "after_commit": True,
}
