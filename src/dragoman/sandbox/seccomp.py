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

`DENIED` is a deny list, not an allow list: what runs inside may be any interpreter of any version, and namespaces,
Landlock and limits stand behind it. It holds the system calls that widen the kernel's surface or reach around those.
"""

from __future__ import annotations

import enum
import errno
import platform
import struct
from collections.abc import Iterable
from typing import NamedTuple


class Machine(enum.StrEnum):
    X86_64 = "x86_64"
    AARCH64 = "aarch64"


AUDIT_ARCH = {Machine.X86_64: 0xC000003E, Machine.AARCH64: 0xC00000B7}
X32_BIT = 0x40000000
"""On x86_64 the same numbers with this bit are a second table of calls."""


class Numbers(NamedTuple):
    x86_64: int | None
    aarch64: int | None

    def on(self, machine: Machine) -> int | None:
        return self.x86_64 if machine is Machine.X86_64 else self.aarch64


DENIED: dict[str, Numbers] = {
    # other processes
    "ptrace": Numbers(101, 117),
    "process_vm_readv": Numbers(310, 270),
    "process_vm_writev": Numbers(311, 271),
    "process_madvise": Numbers(440, 440),
    "kcmp": Numbers(312, 272),
    "pidfd_getfd": Numbers(438, 438),
    "move_pages": Numbers(279, 239),
    "migrate_pages": Numbers(256, 238),
    # the kernel's keys
    "add_key": Numbers(248, 217),
    "request_key": Numbers(249, 218),
    "keyctl": Numbers(250, 219),
    # large and often broken parts of the kernel; io_uring also goes around this filter
    "bpf": Numbers(321, 280),
    "perf_event_open": Numbers(298, 241),
    "userfaultfd": Numbers(323, 282),
    "io_uring_setup": Numbers(425, 425),
    "io_uring_enter": Numbers(426, 426),
    "io_uring_register": Numbers(427, 427),
    "fanotify_init": Numbers(300, 262),
    "memfd_secret": Numbers(447, 447),
    "vmsplice": Numbers(278, 75),
    "mbind": Numbers(237, 235),
    "set_mempolicy": Numbers(238, 237),
    "set_mempolicy_home_node": Numbers(450, 450),
    "modify_ldt": Numbers(154, None),
    "personality": Numbers(135, 92),
    "uselib": Numbers(134, None),
    "lookup_dcookie": Numbers(212, 18),
    "nfsservctl": Numbers(180, 42),
    "_sysctl": Numbers(156, None),
    "sysfs": Numbers(139, None),
    "ustat": Numbers(136, None),
    # mounts and namespaces
    "mount": Numbers(165, 40),
    "umount2": Numbers(166, 39),
    "pivot_root": Numbers(155, 41),
    "chroot": Numbers(161, 51),
    "open_tree": Numbers(428, 428),
    "move_mount": Numbers(429, 429),
    "fsopen": Numbers(430, 430),
    "fsconfig": Numbers(431, 431),
    "fsmount": Numbers(432, 432),
    "fspick": Numbers(433, 433),
    "mount_setattr": Numbers(442, 442),
    "open_tree_attr": Numbers(467, 467),
    "unshare": Numbers(272, 97),
    "setns": Numbers(308, 268),
    "name_to_handle_at": Numbers(303, 264),
    "open_by_handle_at": Numbers(304, 265),
    # the machine itself
    "reboot": Numbers(169, 142),
    "kexec_load": Numbers(246, 104),
    "kexec_file_load": Numbers(320, 294),
    "init_module": Numbers(175, 105),
    "finit_module": Numbers(313, 273),
    "delete_module": Numbers(176, 106),
    "iopl": Numbers(172, None),
    "ioperm": Numbers(173, None),
    "swapon": Numbers(167, 224),
    "swapoff": Numbers(168, 225),
    "acct": Numbers(163, 89),
    "quotactl": Numbers(179, 60),
    "quotactl_fd": Numbers(443, 443),
    "syslog": Numbers(103, 116),
    "vhangup": Numbers(153, 58),
    "settimeofday": Numbers(164, 170),
    "clock_settime": Numbers(227, 112),
    "clock_adjtime": Numbers(305, 266),
    "adjtimex": Numbers(159, 171),
    "sethostname": Numbers(170, 161),
    "setdomainname": Numbers(171, 162),
}

CLONE = Numbers(56, 220)
CLONE3 = Numbers(435, 435)
"""Its flags lie behind a pointer, where no filter can look: answered as unknown, so that libc takes `clone`."""
NEW_NAMESPACES = 0x7E020080
"""CLONE_NEWTIME | NEWNS | NEWCGROUP | NEWUTS | NEWIPC | NEWUSER | NEWPID | NEWNET."""

IOCTL = Numbers(16, 29)
TYPED_FOR_OTHERS = (0x5412, 0x541C)
"""TIOCSTI and TIOCLINUX: they type into the terminal of the process that started us."""

SOCKET = Numbers(41, 198)
AF_UNIX, AF_INET, AF_INET6 = 1, 2, 10

SET_ID = 0o6000
"""S_ISUID | S_ISGID: another user of the machine could start such a program of the hub's user after the sandbox."""
MODES: dict[str, tuple[int, Numbers]] = {
    "chmod": (1, Numbers(90, None)),
    "fchmod": (1, Numbers(91, 52)),
    "fchmodat": (2, Numbers(268, 53)),
    "fchmodat2": (2, Numbers(452, 452)),
    "mknod": (1, Numbers(133, None)),
    "mknodat": (2, Numbers(259, 33)),
    "creat": (1, Numbers(85, None)),
}
"""Calls that give a file its mode, and which argument has it."""

CREATES = 0o20000100
"""O_CREAT | O_TMPFILE: only with these is there a mode."""
OPENS: dict[str, tuple[int, Numbers]] = {"open": (1, Numbers(2, None)), "openat": (2, Numbers(257, 56))}
"""The same, where the flags say so, which stand before the mode."""
OPENAT2 = Numbers(437, 437)
"""Its mode lies behind a pointer: answered as unknown, and callers take `openat`."""

# -- the program

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
        filter.jump(AT_LEAST, X32_BIT, "kill")
    for looked_at, where in (
        (CLONE, "clone"),
        (SOCKET, "socket"),
        (IOCTL, "ioctl"),
        (CLONE3, "unknown"),
        (OPENAT2, "unknown"),
        *((numbers, f"flags {place}") for place, numbers in OPENS.values()),
        *((numbers, f"mode {place}") for place, numbers in MODES.values()),
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
    filter.jump(ANY_BIT, NEW_NAMESPACES, "refuse")
    filter.answer(ALLOW)
    filter.label("ioctl")
    filter.load(SECOND)
    for request in TYPED_FOR_OTHERS:
        filter.jump(EQUAL, request, "refuse")
    filter.answer(ALLOW)
    for place, _ in OPENS.values():
        filter.label(f"flags {place}")
        filter.load(ARGUMENTS[place])
        filter.jump(ANY_BIT, CREATES, f"mode {place + 1}")
        filter.answer(ALLOW)
    for place in range(1, len(ARGUMENTS)):
        filter.label(f"mode {place}")
        filter.load(ARGUMENTS[place])
        filter.jump(ANY_BIT, SET_ID, "refuse")
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
