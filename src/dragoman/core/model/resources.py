"""The resources that an agent has a fixed amount of while its process runs, and that its tasks share.

An agent may say at its registration how much it has, and a task how much it may need. One more resource is one more row
here, and a field of that name in `Agent`, `RegisterAgent` and `Route`. What is done with the amounts is in
`core.budgets.capacity`.
"""

from __future__ import annotations

import msgspec


class Resource(msgspec.Struct, frozen=True, gc=False):
    """`name` is the field of an agent and of a route, and what a refusal calls the limit; `constraint` is by what name
    a task asks for it; `least` is the smallest limit that an agent may declare; `lacking` is the code of `task why`."""

    name: str
    constraint: str
    unit: str
    least: int
    lacking: str

    @property
    def names(self) -> tuple[str, str]:
        """By what names chiffon's callers and agents may call it; the first counts."""
        return self.constraint, self.name


#                   name         constraint       unit            least  lacking
MEMORY = Resource("memory_mb", "max_memory_mb", "MB of memory", 1, "lacks_memory")
GPU_MEMORY = Resource("gpu_vram_mb", "max_gpu_vram_mb", "MB of GPU memory", 0, "lacks_gpu_memory")

RESOURCES = (MEMORY, GPU_MEMORY)
CONSTRAINTS = frozenset(resource.constraint for resource in RESOURCES)
"""What a task's constraints call these: no matter of budgets."""
