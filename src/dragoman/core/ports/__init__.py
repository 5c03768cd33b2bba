"""The ports of the core: `storage`, what it asks of its surroundings, and `intake`, what it offers to transports.

Above: the unit of work and everything that decides. Below: the model. Adapters live in `stores`, `app` and `server`,
never here. A port is a promise: its docstrings state order, atomicity, leases and durability.
"""

from dragoman.core.ports.intake import Future, Intake, LinkEnd, Watch
from dragoman.core.ports.storage import (
    PASSED,
    USED,
    Changes,
    Due,
    Fenced,
    Files,
    FoundTasks,
    Recovered,
    Store,
    StoreFailed,
    TaskFilter,
    TaskSearch,
    Unit,
    Vault,
)

__all__ = [
    "Changes",
    "Due",
    "Fenced",
    "Files",
    "FoundTasks",
    "Future",
    "Intake",
    "LinkEnd",
    "PASSED",
    "Recovered",
    "Store",
    "StoreFailed",
    "TaskFilter",
    "TaskSearch",
    "USED",
    "Unit",
    "Vault",
    "Watch",
]
