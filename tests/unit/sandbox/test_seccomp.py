"""The filter, run by a small interpreter of its language: no kernel needed, and both machines on one."""

from __future__ import annotations

import errno
import struct

import pytest

from dragoman.sandbox import seccomp
from dragoman.sandbox.seccomp import AUDIT_ARCH, DENIED, Machine

EPERM, ENOSYS = seccomp.REFUSE | errno.EPERM, seccomp.REFUSE | errno.ENOSYS
READ = {Machine.X86_64: 0, Machine.AARCH64: 63}


def asked(program: bytes, number: int, *arguments: int, arch: int) -> int:
    data = struct.pack("<iIQ6Q", number, arch, 0, *(*arguments, 0, 0, 0, 0, 0, 0)[:6])
    code = list(seccomp.INSTRUCTION.iter_unpack(program))
    at, held = 0, 0
    while True:
        operation, taken, not_taken, value = code[at]
        at += 1
        match operation:
            case seccomp.LOAD:
                (held,) = struct.unpack_from("<I", data, value)
            case seccomp.RETURN:
                return int(value)
            case seccomp.EQUAL:
                at += taken if held == value else not_taken
            case seccomp.AT_LEAST:
                at += taken if held >= value else not_taken
            case seccomp.ANY_BIT:
                at += taken if held & value else not_taken
            case _:
                pytest.fail(f"unknown operation {operation:#x}")


@pytest.fixture(params=list(Machine))
def machine(request: pytest.FixtureRequest) -> Machine:
    found: Machine = request.param
    return found


def test_every_denied_call_is_refused(machine: Machine) -> None:
    program = seccomp.program(machine)
    numbers = {name: at for name, each in DENIED.items() if (at := each.on(machine)) is not None}
    answers = {name: asked(program, number, arch=AUDIT_ARCH[machine]) for name, number in numbers.items()}
    assert answers == dict.fromkeys(numbers, EPERM)
    assert len(set(numbers.values())) == len(numbers)


def test_an_ordinary_call_is_allowed(machine: Machine) -> None:
    assert asked(seccomp.program(machine), READ[machine], arch=AUDIT_ARCH[machine]) == seccomp.ALLOW


def test_a_call_by_another_machines_numbers_kills(machine: Machine) -> None:
    (other,) = set(Machine) - {machine}
    assert asked(seccomp.program(machine), READ[machine], arch=AUDIT_ARCH[other]) == seccomp.KILL


def test_the_second_table_of_x86_kills() -> None:
    program = seccomp.program(Machine.X86_64)
    assert asked(program, seccomp.X32_BIT | 101, arch=AUDIT_ARCH[Machine.X86_64]) == seccomp.KILL


@pytest.mark.parametrize("flag", [0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000])
def test_clone_into_a_namespace_is_refused_and_a_plain_one_is_not(machine: Machine, flag: int) -> None:
    program, clone = seccomp.program(machine), seccomp.CLONE.on(machine)
    assert clone is not None
    assert asked(program, clone, flag | 17, arch=AUDIT_ARCH[machine]) == EPERM
    assert asked(program, clone, 0x01200011, arch=AUDIT_ARCH[machine]) == seccomp.ALLOW


def test_clone3_does_not_exist(machine: Machine) -> None:
    assert asked(seccomp.program(machine), 435, arch=AUDIT_ARCH[machine]) == ENOSYS


@pytest.mark.parametrize(("request_", "answer"), [(0x5412, EPERM), (0x541C, EPERM), (0x5401, seccomp.ALLOW)])
def test_typing_into_a_terminal_is_refused(machine: Machine, request_: int, answer: int) -> None:
    ioctl = seccomp.IOCTL.on(machine)
    assert ioctl is not None
    assert asked(seccomp.program(machine), ioctl, 0, request_, arch=AUDIT_ARCH[machine]) == answer


SET_ID_TRIES = [0o4755, 0o2755, 0o6000, 0o104755]
CREATING = (0o101, 0o20000002)
"""O_CREAT | O_WRONLY, and O_TMPFILE | O_RDWR as far as it says that there is a mode."""


@pytest.mark.parametrize("name", list(seccomp.MODES))
def test_no_file_is_made_set_user_id(machine: Machine, name: str) -> None:
    program, (place, numbers) = seccomp.program(machine), seccomp.MODES[name]
    if (number := numbers.on(machine)) is None:
        return
    before = (0o7777,) * place
    answers = {mode: asked(program, number, *before, mode, arch=AUDIT_ARCH[machine]) for mode in SET_ID_TRIES}
    assert answers == dict.fromkeys(SET_ID_TRIES, EPERM)
    assert asked(program, number, *before, 0o1777, 0o7777, arch=AUDIT_ARCH[machine]) == seccomp.ALLOW


@pytest.mark.parametrize("name", list(seccomp.OPENS))
def test_nor_is_one_created_so(machine: Machine, name: str) -> None:
    program, (place, numbers) = seccomp.program(machine), seccomp.OPENS[name]
    if (number := numbers.on(machine)) is None:
        return
    before = (0o7777,) * place
    for flags in CREATING:
        for mode in SET_ID_TRIES:
            assert asked(program, number, *before, flags, mode, arch=AUDIT_ARCH[machine]) == EPERM
        assert asked(program, number, *before, flags, 0o755, arch=AUDIT_ARCH[machine]) == seccomp.ALLOW
    assert asked(program, number, *before, 0, 0o4755, arch=AUDIT_ARCH[machine]) == seccomp.ALLOW  # there is no mode
    assert asked(program, 437, arch=AUDIT_ARCH[machine]) == ENOSYS  # openat2 hides it


@pytest.mark.parametrize(
    ("families", "made"),
    [((), set()), (seccomp.NO_NETWORK, {1}), (seccomp.NETWORK, {1, 2, 10})],
    ids=["none", "local", "network"],
)
def test_only_allowed_families_of_sockets_are_made(machine: Machine, families: tuple[int, ...], made: set[int]) -> None:
    program, socket = seccomp.program(machine, families=families), seccomp.SOCKET.on(machine)
    assert socket is not None
    answers = {family: asked(program, socket, family, arch=AUDIT_ARCH[machine]) for family in range(46)}
    assert {family for family, answer in answers.items() if answer == seccomp.ALLOW} == made
    assert {answer for family, answer in answers.items() if family not in made} == {EPERM}


def test_a_jump_too_far_is_an_error_and_not_a_hole() -> None:
    program = seccomp.Assembler()
    program.jump(seccomp.EQUAL, 1, "end")
    for _ in range(300):
        program.answer(seccomp.ALLOW)
    program.label("end")
    with pytest.raises(ValueError, match="too long"):
        program.assemble()
