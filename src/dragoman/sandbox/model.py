"""The values of the sandbox: levels, what is allowed inside, what a self-test found, and the refusal. No effects.

level               holds back                                              for
hyperlight          all but a pipe, by a virtual machine                    Python source
wasm                all but what WASI was given, by the compiler            WebAssembly modules
bubblewrap          files, network, processes, memory, system calls         processes
landlock+seccomp    the same, but shares process table and network stack    processes
none                nothing                                                 anything
"""

from __future__ import annotations

import enum
from typing import Annotated

import msgspec
from msgspec import Meta

MIB = 1024 * 1024


class Level(enum.StrEnum):
    HYPERLIGHT = "hyperlight"
    WASM = "wasm"
    BUBBLEWRAP = "bubblewrap"
    LANDLOCK = "landlock+seccomp"
    NONE = "none"

    @property
    def strength(self) -> int:
        return STRENGTH[self]

    def satisfies(self, least: Level) -> bool:
        return self.strength >= least.strength


STRENGTH = {Level.HYPERLIGHT: 3, Level.WASM: 2, Level.BUBBLEWRAP: 2, Level.LANDLOCK: 1, Level.NONE: 0}
"""Wasm and bubblewrap stand beside each other: neither can run what the other runs."""


class Workload(enum.StrEnum):
    PROCESS = "process"
    WASM = "wasm"
    PYTHON = "python"
    """Python source without anything installed."""


RUNS = {
    Level.HYPERLIGHT: frozenset({Workload.PYTHON}),
    Level.WASM: frozenset({Workload.WASM}),
    Level.BUBBLEWRAP: frozenset({Workload.PROCESS, Workload.PYTHON}),
    Level.LANDLOCK: frozenset({Workload.PROCESS, Workload.PYTHON}),
    Level.NONE: frozenset(Workload),
}

Path = Annotated[str, Meta(pattern="^/[^\\x00]{0,4000}$(?!\\n)")]
Host = Annotated[str, Meta(pattern="^[A-Za-z0-9.:\\-\\[\\]*]{1,260}$(?!\\n)")]
Variable = Annotated[str, Meta(pattern="^[A-Za-z_][A-Za-z0-9_]{0,255}$(?!\\n)")]
Amount = Annotated[int, Meta(ge=1, le=1 << 40)]


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """What an untrusted agent has to be held by, at least."""

    workload: Workload = Workload.PROCESS
    least: Level = Level.BUBBLEWRAP


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What one sandbox may use.

    `memory_mb` is what each process may map, and where control groups are ours also what all of them hold together.
    Some runtimes map far more than they use (V8, Go, Java): `address_mb` lets them, and then only a control group
    holds the memory. `seconds` is the time of one run of a module or a piece of source; a process that serves for days
    has `cpu_seconds` instead.
    """

    memory_mb: Amount = 1024
    address_mb: Amount | None = None
    processes: Amount = 64
    """Threads are counted too."""
    open_files: Amount = 256
    file_mb: Amount = 256
    scratch_mb: Amount = 64
    """Of /tmp, which is memory."""
    cpu_seconds: Amount | None = None
    seconds: float = 60.0
    fuel: Amount | None = None
    """Wasm only: roughly one unit an instruction."""


class Sandbox(msgspec.Struct, frozen=True, kw_only=True):
    """What is allowed inside, beside what the command needs to start at all.

    `variables` are names; all others of the environment are taken away. `hosts` are `name`, `name:port` or
    `*.domain`, port 443 where none is named.
    """

    read: tuple[Path, ...] = ()
    write: tuple[Path, ...] = ()
    cwd: Path = "/tmp"
    """Must be one of the above, or below one; else it is an empty directory."""
    hidden: tuple[Path, ...] = ()
    """What stays invisible even where something around it is allowed: the hub's own data."""
    variables: tuple[Variable, ...] = ()
    hosts: tuple[Host, ...] = ()
    limits: Limits = Limits()
    hostname: str = "sandbox"
    uid: int = 65534
    gid: int = 65534


# -- what was found


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """One forbidden thing, attempted from inside. `saw` is what came of it: an error's name, or what was got."""

    attempt: str
    refused: bool
    saw: str


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a level stands on this machine, and if not, why and what to do."""

    level: Level
    version: str | None = None
    available: bool = False
    passed: bool = False
    why_not: str | None = None
    remedy: str | None = None
    probes: tuple[Probe, ...] = msgspec.field(default=(), name="trials")
    """`trials` in what `dragoman sandbox check` prints as JSON."""

    @staticmethod
    def missing(level: Level, why: str, remedy: str, version: str | None = None) -> Report:
        return Report(level=level, version=version, why_not=why, remedy=remedy)

    @staticmethod
    def broken(level: Level, version: str | None, why: str, remedy: str) -> Report:
        """The self-test itself failed."""
        return Report(level=level, version=version, available=version is not None, why_not=why, remedy=remedy)

    @staticmethod
    def judged(level: Level, version: str, probes: tuple[Probe, ...], *, expected: int, remedy: str) -> Report:
        """Passed only when every probe was made and refused: a self-test cut short proves nothing."""
        open_ones = [f"{probe.attempt} ({probe.saw})" for probe in probes if not probe.refused]
        why: str | None = None
        if open_ones:
            why = "not refused: " + ", ".join(open_ones)
        elif len(probes) < expected:
            why = f"only {len(probes)} of {expected} probes were made"
        return Report(
            level=level,
            version=version,
            available=True,
            passed=why is None,
            why_not=why,
            remedy=remedy if why else None,
            probes=probes,
        )


class Unavailable(Exception):
    """A level cannot do what is asked, on this machine or at all."""

    def __init__(self, level: Level, why: str, remedy: str) -> None:
        super().__init__(f"{level}: {why}")
        self.level = level
        self.why = why
        self.remedy = remedy


class BelowPolicy(Exception):
    """Nothing that stands here is as strong as the policy asks. `reports` are the levels that would have done."""

    def __init__(self, policy: Policy, reports: tuple[Report, ...], strongest: Level) -> None:
        self.policy = policy
        self.reports = reports
        self.strongest = strongest
        missing = "; ".join(f"{report.level}: {report.why_not}" for report in reports) or "no such level exists"
        super().__init__(
            f"a {policy.workload} must run at level {policy.least} or above, the strongest here is {strongest}"
            f" ({missing}). To do: {self.remedy}"
        )

    @property
    def remedy(self) -> str:
        return " or ".join(report.remedy for report in self.reports if report.remedy) or "allow a lower level"
