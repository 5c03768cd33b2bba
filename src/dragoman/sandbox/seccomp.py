"""The seccomp filter, as the bytes that the kernel takes: a classic BPF program made here, without a library.

    another architecture, or x32   the process is killed: its call numbers would mean something else
    DENIED, clone into namespaces  EPERM
    clone3, openat2                ENOSYS
    a file set-user-id             EPERM, and set-group-id as well
    ioctl TIOCSTI, TIOCLINUX       EPERM
    socket                         only of the families that are allowed, else EPERM
    all else                       allowed

Where the kernel's own filters look only at the number, it remembers the answer (since 5.11): the length of the list
costs nothing then.
"""

from __future__ import annotations

import errno
import platform
import struct
from collections.abc import Iterable

from dragoman.sandbox import syscalls
from dragoman.sandbox.syscalls import AF_INET, AF_INET6, AF_UNIX, AUDIT_ARCH, DENIED, Machine

LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
"""BPF_LD|W|ABS, BPF_JMP|JEQ|K, JMP|JGE|K, JMP|JSET|K, RET|K."""
NUMBER, ARCHITECTURE = 0, 4
ARGUMENTS = FIRST, SECOND, THIRD, FOURTH = 16, 24, 32, 40
"""Where the low halves of a call's arguments lie; both machines are little-endian."""
ALLOW, REFUSE, KILL = 0x7FFF0000, 0x00050000, 0x80000000
INSTRUCTION = struct.Struct("<HBBI")
FARTHEST = 255

NO_NETWORK = (AF_UNIX,)
NETWORK = (AF_UNIX, AF_INET, AF_INET6)


class Assembler:
    """A program of labels; a jump that is taken goes forward to a label, one that is not falls through."""

    def __init__(self) -> None:
        self._code: list[tuple[int, str | None, int]] = []
        self._labels: dict[str, int] = {}

    def load(self, offset: int) -> None:
        self._code.append((LOAD, None, offset))

    def jump(self, how: int, value: int, to: str) -> None:
        self._code.append((how, to, value))

    def answer(self, what: int) -> None:
        self._code.append((RETURN, None, what))

    def label(self, name: str) -> None:
        self._labels[name] = len(self._code)

    def assemble(self) -> bytes:
        out = bytearray()
        for place, (code, to, value) in enumerate(self._code):
            distance = 0 if to is None else self._labels[to] - place - 1
            if not 0 <= distance <= FARTHEST:
                raise ValueError(f"a jump over {distance} instructions: the filter has grown too long")
            out += INSTRUCTION.pack(code, distance, 0, value)
        return bytes(out)


def here() -> Machine | None:
    """None on a machine whose numbers we do not know."""
    try:
        return Machine({"amd64": "x86_64", "arm64": "aarch64"}.get(platform.machine(), platform.machine()))
    except ValueError:
        return None


def program(machine: Machine, *, families: Iterable[int] = NO_NETWORK) -> bytes:
    """The filter for one machine. `families` are the sockets that may be made; pairs of them always may."""
    filter = Assembler()
    filter.load(ARCHITECTURE)
    filter.jump(EQUAL, AUDIT_ARCH[machine], "known")
    filter.answer(KILL)
    filter.label("known")
    filter.load(NUMBER)
    if machine is Machine.X86_64:
        filter.jump(AT_LEAST, syscalls.X32_BIT, "kill")
    for looked_at, where in (
        (syscalls.CLONE, "clone"),
        (syscalls.SOCKET, "socket"),
        (syscalls.IOCTL, "ioctl"),
        (syscalls.CLONE3, "unknown"),
        (syscalls.OPENAT2, "unknown"),
        *((numbers, f"flags {place}") for place, numbers in syscalls.OPENS.values()),
        *((numbers, f"mode {place}") for place, numbers in syscalls.MODES.values()),
    ):
        number = looked_at.on(machine)
        if number is not None:
            filter.jump(EQUAL, number, where)
    for numbers in DENIED.values():
        number = numbers.on(machine)
        if number is not None:
            filter.jump(EQUAL, number, "refuse")
    filter.answer(ALLOW)

    filter.label("clone")
    filter.load(FIRST)
    filter.jump(ANY_BIT, syscalls.NEW_NAMESPACES, "refuse")
    filter.answer(ALLOW)
    filter.label("ioctl")
    filter.load(SECOND)
    for request in syscalls.TYPED_FOR_OTHERS:
        filter.jump(EQUAL, request, "refuse")
    filter.answer(ALLOW)
    for place, _ in syscalls.OPENS.values():
        filter.label(f"flags {place}")
        filter.load(ARGUMENTS[place])
        filter.jump(ANY_BIT, syscalls.CREATES, f"mode {place + 1}")
        filter.answer(ALLOW)
    for place in range(1, len(ARGUMENTS)):
        filter.label(f"mode {place}")
        filter.load(ARGUMENTS[place])
        filter.jump(ANY_BIT, syscalls.SET_ID, "refuse")
        filter.answer(ALLOW)
    filter.label("socket")
    filter.load(FIRST)
    for family in families:
        filter.jump(EQUAL, family, "allow")
    filter.label("refuse")
    filter.answer(REFUSE | errno.EPERM)
    filter.label("unknown")
    filter.answer(REFUSE | errno.ENOSYS)
    filter.label("kill")
    filter.answer(KILL)
    filter.label("allow")
    filter.answer(ALLOW)
    return filter.assemble()
