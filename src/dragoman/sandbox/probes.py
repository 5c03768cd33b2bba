"""Everything that is forbidden, attempted in earnest from inside. Run as a script by a bare interpreter, in the sandbox
that is to be proved (`python -I -S probes.py`); imports nothing of ours.

Each probe is a function of the scene that `self_test.py` has set; it is read from stdin, where no other process can
read it. A probe raises when it was refused, and returns what it got when it was not. One line of JSON for each goes to
stdout: [attempt, refused, saw].
"""

import contextlib
import ctypes
import errno
import json
import mmap
import os
import platform
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

Inputs = dict[str, Any]
TRACE_ME = 0
NEW_USER = 0x10000000
MIB = 1 << 20
FILTERED = (errno.EPERM, errno.ENOSYS)
CALLS = {
    "x86_64": {"ptrace": 101, "keyctl": 250, "unshare": 272, "bpf": 321, "io_uring_setup": 425, "mount": 165},
    "aarch64": {"ptrace": 117, "keyctl": 219, "unshare": 97, "bpf": 280, "io_uring_setup": 425, "mount": 40},
}
DEVICES = ("/dev/mem", "/dev/kmsg", "/dev/kvm", "/dev/sda", "/dev/vda", "/dev/nvme0n1", "/dev/fuse", "/dev/net/tun")


class Refused(Exception):
    pass


def _read(path: str) -> str:
    with open(path, "rb") as file:
        return f"{len(file.read(4096))} bytes"


def read_a_file_outside(inputs: Inputs) -> str:
    return _read(inputs["canary"])


def read_the_password_file(inputs: Inputs) -> str:
    return _read("/etc/shadow")


def list_a_directory_outside(inputs: Inputs) -> str:
    return f"{len(os.listdir(inputs['outside']))} names"


def follow_a_link_outside(inputs: Inputs) -> str:
    link = f"{inputs['home']}/link"
    with contextlib.suppress(FileExistsError):
        os.symlink(inputs["canary"], link)
    return _read(link)


def write_a_file_outside(inputs: Inputs) -> str:
    with open(f"{inputs['outside']}/written", "w") as file:
        file.write("got out")
    return "written"


def write_among_the_programs(inputs: Inputs) -> str:
    path = "/usr/bin/dragoman-trial"
    with open(path, "w"):
        pass
    os.unlink(path)
    return "written"


def leave_a_program_set_user_id(inputs: Inputs) -> str:
    path = f"{inputs['home']}/set"
    for created, changed in ((0o4755, None), (0o755, 0o4755), (0o755, 0o2755)):
        with contextlib.suppress(OSError):
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY, created))
            if changed is not None:
                os.chmod(path, changed)
            mode = os.stat(path).st_mode
            if mode & 0o6000:
                os.unlink(path)
                return oct(mode)
    raise Refused("EPERM")


def open_a_device(inputs: Inputs) -> str:
    for path in DEVICES:
        with contextlib.suppress(OSError):
            os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
            return path
    raise Refused("none there, or none opened")


def make_a_network_socket(inputs: Inputs) -> str:
    socket.socket(socket.AF_INET).close()
    return "made"


def connect_to_the_host(inputs: Inputs) -> str:
    with socket.create_connection(("127.0.0.1", inputs["port"]), timeout=5):
        return "connected"


def send_a_datagram(inputs: Inputs) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"x", ("127.0.0.1", inputs["port"]))
    return "sent"


def connect_to_an_abstract_socket(inputs: Inputs) -> str:
    with socket.socket(socket.AF_UNIX) as ours:
        ours.settimeout(5)
        ours.connect("\0" + inputs["abstract"])
    return "connected"


def connect_to_a_local_socket(inputs: Inputs) -> str:
    with socket.socket(socket.AF_UNIX) as ours:
        ours.settimeout(5)
        ours.connect(f"{inputs['outside']}/s")
    return "connected"


def fork_beyond_the_limit(inputs: Inputs) -> str:
    most = inputs["processes"] + 4
    wait, release = os.pipe()
    children: list[int] = []
    try:
        for _ in range(most):
            pid = os.fork()
            if pid == 0:
                os.close(release)
                os.read(wait, 1)
                os._exit(0)
            children.append(pid)
        return f"{most} processes"
    finally:
        os.close(release)
        os.close(wait)
        for pid in children:
            os.waitpid(pid, 0)


def take_more_memory(inputs: Inputs) -> str:
    size = (inputs["memory_mb"] + 64) * MIB
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS):
        return f"{size} bytes"


def _call(name: str, *arguments: object) -> str:
    libc = ctypes.CDLL(None, use_errno=True)
    answer = libc.syscall(CALLS[platform.machine()][name], *arguments)
    if answer >= 0:
        return f"{answer}"
    number = ctypes.get_errno()
    if number in FILTERED:
        raise OSError(number, os.strerror(number))
    return f"reached the kernel: {errno.errorcode[number]}"


def trace_a_process(inputs: Inputs) -> str:
    return _call("ptrace", TRACE_ME, 0, 0, 0)


def use_the_kernels_keys(inputs: Inputs) -> str:
    return _call("keyctl", 0, -2, 1)


def make_a_namespace(inputs: Inputs) -> str:
    return _call("unshare", NEW_USER)


def load_a_kernel_program(inputs: Inputs) -> str:
    return _call("bpf", 0, None, 0)


def open_an_io_ring(inputs: Inputs) -> str:
    return _call("io_uring_setup", 1, ctypes.create_string_buffer(120))


def mount_a_filesystem(inputs: Inputs) -> str:
    return _call("mount", b"none", inputs["home"].encode(), b"tmpfs", 0, None)


def find_a_descriptor(inputs: Inputs) -> str:
    for descriptor in range(3, 1024):
        with contextlib.suppress(OSError):
            os.fstat(descriptor)
            return f"descriptor {descriptor}"
    raise Refused("none beyond 2")


def find_a_secret_in_the_environment(inputs: Inputs) -> str:
    for name, value in os.environ.items():
        if inputs["secret"] in value:
            return name
    raise Refused("not there")


def find_a_secret_among_processes(inputs: Inputs) -> str:
    for pid in (name for name in os.listdir("/proc") if name.isdigit()):
        for file in ("environ", "cmdline"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/{file}", "rb") as opened:
                content = opened.read()
                if inputs["secret"].encode() in content:
                    return f"/proc/{pid}/{file}"
    raise Refused("not there")


def write_to_the_kernels_settings(inputs: Inputs) -> str:
    path = "/proc/sys/kernel/core_pattern"
    with open(path) as file:
        now = file.read()
    with open(path, "w") as file:
        file.write(now)
    return "written"


def kill_a_process_outside(inputs: Inputs) -> str:
    """Whether it died is seen from outside; inside, the number may be another process's, but never ours."""
    if inputs["victim"] == os.getpid():
        raise Refused("another one inside")
    os.kill(inputs["victim"], signal.SIGKILL)
    return "sent"


PROBES: "tuple[Callable[[Any], str], ...]" = (
    read_a_file_outside,
    read_the_password_file,
    list_a_directory_outside,
    follow_a_link_outside,
    write_a_file_outside,
    write_among_the_programs,
    leave_a_program_set_user_id,
    open_a_device,
    make_a_network_socket,
    connect_to_the_host,
    send_a_datagram,
    connect_to_an_abstract_socket,
    connect_to_a_local_socket,
    fork_beyond_the_limit,
    take_more_memory,
    trace_a_process,
    use_the_kernels_keys,
    make_a_namespace,
    load_a_kernel_program,
    open_an_io_ring,
    mount_a_filesystem,
    find_a_descriptor,
    find_a_secret_in_the_environment,
    find_a_secret_among_processes,
    write_to_the_kernels_settings,
    kill_a_process_outside,
)


def main(inputs: Inputs) -> None:
    for probe in PROBES:
        try:
            refused, saw = False, probe(inputs)
        except Refused as why:
            refused, saw = True, str(why)
        except MemoryError:
            refused, saw = True, "ENOMEM"
        except OSError as error:
            refused, saw = True, errno.errorcode.get(error.errno or 0, str(error))
        os.write(1, json.dumps([probe.__name__, refused, saw]).encode() + b"\n")


if __name__ == "__main__":
    main(json.loads(sys.stdin.read()))
