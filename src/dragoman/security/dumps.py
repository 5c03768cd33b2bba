"""No core dumps: keys, tokens and personal data are in the memory of the hub and of its writer.

Besides, no other process of the same user may look into that memory or attach to it. What the hub starts is not held to
the second: a program that is executed begins anew.
"""

from __future__ import annotations

import ctypes
import resource
import sys

PR_SET_DUMPABLE = 4


def leave_no_dumps() -> None:
    """For this process, from now on; its children inherit the limit."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
