"""The launcher: restricts itself, then becomes the command. Run as a script by a bare interpreter
(`python -I -S launcher.py PLAN -- COMMAND…`), outside and again inside; it imports nothing of ours.

    outside   other variables and descriptors go away, its own control group, the way out if hosts are allowed,
              then it becomes bubblewrap, which has the seccomp filter from here and starts us again
    inside    limits, Landlock, then it becomes the command
    alone     no bubblewrap on this machine: capabilities, limits, Landlock and seccomp, all in one process

The plan stands in the argument vector, which every user of the machine may read: it holds paths and numbers, never the
value of a variable. Where a restriction cannot be made the command is not run: exit code 126, and why on stderr.

It runs twice at every start, so it imports little: json, typing and socket alone would double its time. That is why the
plan is marshalled; both ends are the same interpreter. It is started compiled, where it lies so (`file`).
"""

import binascii
import errno
import marshal
import os
import resource
import struct
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

PR_SET_PDEATHSIG, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP = 1, 24, 38, 22
PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
SECCOMP_MODE_FILTER = 2
CAPABILITY_VERSION = 0x20080522
SIGKILL = 9
REFUSED = 126

RESOURCES = {
    "core": resource.RLIMIT_CORE,
    "open_files": resource.RLIMIT_NOFILE,
    "memory": resource.RLIMIT_AS,
    "cpu_seconds": resource.RLIMIT_CPU,
    "processes": resource.RLIMIT_NPROC,
    "file_size": resource.RLIMIT_FSIZE,
}
ALWAYS_KEPT = "DRAGOMAN_DESCENDANT"
"""By this one a child's descendants are found."""

# -- Landlock. The numbers are the same on every machine.

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = (1 << bit for bit in range(4))
MAKE_CHAR, MAKE_BLOCK, REFER, TRUNCATE, IOCTL_DEV = 1 << 6, 1 << 11, 1 << 13, 1 << 14, 1 << 15
OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
EVERYTHING_BY_ABI = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1, 5: (1 << 16) - 1}
RIGHTS = {
    "read": EXECUTE | READ_FILE | READ_DIR,
    "write": ((1 << 15) - 1) & ~(MAKE_CHAR | MAKE_BLOCK),
    "device": READ_FILE | WRITE_FILE | READ_DIR | TRUNCATE | IOCTL_DEV,
}
TCP = 0b11
"""Binding and connecting, since ABI 4."""
SCOPES = 0b11
"""Abstract sockets and signals to processes outside, since ABI 6."""

_libc: "list[Any]" = []


class SandboxNotBuilt(Exception):
    """A restriction that could not be made."""


def call(name: str, *arguments: object) -> int:
    """A function of libc. Loaded when it is first needed: outside, with bubblewrap, it is not."""
    import ctypes

    if not _libc:
        _libc.append(ctypes.CDLL(None, use_errno=True))
    return int(getattr(_libc[0], name)(*arguments))


def last_error() -> int:
    import ctypes

    return ctypes.get_errno()


def landlock_abi() -> int:
    """0 where the kernel has none."""
    return max(0, call("syscall", CREATE_RULESET, None, 0, 1))


def landlock(rules: "list[tuple[str, str]]", *, network: bool) -> int:
    """Restrict this process and all it starts. Paths that do not exist are left out. Returns the ABI in force."""
    abi = landlock_abi()
    if abi == 0:
        raise SandboxNotBuilt("this kernel has no Landlock")
    handled = EVERYTHING_BY_ABI[min(abi, 5)]
    attributes = struct.pack("=QQQ", handled, TCP if abi >= 4 and not network else 0, SCOPES if abi >= 6 else 0)
    attributes = attributes[: 8 if abi < 4 else 16 if abi < 6 else 24]
    ruleset = _check(call("syscall", CREATE_RULESET, attributes, len(attributes), 0), "Landlock ruleset")
    for path, access in rules:
        try:
            place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue
        rights = RIGHTS[access] & handled
        if not os.path.isdir(path):
            rights &= OF_FILES
        beneath = struct.pack("=Qi", rights, place)
        _check(call("syscall", ADD_RULE, ruleset, 1, beneath, 0), f"Landlock rule for {path}")
        os.close(place)
    no_new_privileges()
    _check(call("syscall", RESTRICT_SELF, ruleset, 0), "Landlock")
    os.close(ruleset)
    return abi


def seccomp(filter: bytes) -> None:
    no_new_privileges()
    import ctypes

    room = ctypes.create_string_buffer(filter, len(filter))
    fprog = struct.pack("HxxxxxxP", len(filter) // 8, ctypes.addressof(room))
    _check(call("prctl", PR_SET_SECCOMP, SECCOMP_MODE_FILTER, fprog, 0, 0), "seccomp filter")


def no_new_privileges() -> None:
    _check(call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")


def drop_capabilities() -> None:
    """All of them, and for good: an empty bounding set gives root nothing back at exec."""
    if os.geteuid() == 0:
        number = 0
        while call("prctl", PR_CAPBSET_DROP, number, 0, 0, 0) == 0:
            number += 1
        if last_error() != errno.EINVAL:  # that one is the end of them
            raise SandboxNotBuilt(f"dropping capabilities: {os.strerror(last_error())}")
    call("prctl", PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    header, data = struct.pack("=Ii", CAPABILITY_VERSION, 0), bytes(24)
    _check(call("capset", header, data), "dropping capabilities")


def limit(limits: "dict[str, int]") -> None:
    """Soft and hard; never above what we have."""
    for name, most in limits.items():
        which = RESOURCES[name]
        _, hard = resource.getrlimit(which)
        allowed = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(which, (allowed, allowed))


def die_with(parent: int) -> None:
    """Be killed when `parent` ends; at once, if it has."""
    call("prctl", PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def processes_of(user: int) -> int:
    """Threads of this user at this moment. Without a namespace the kernel counts them all against the limit, the
    hub's own too."""
    found = 0
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if os.stat(f"/proc/{name}").st_uid == user:
                    found += len(os.listdir(f"/proc/{name}/task"))
            except OSError:  # it ended meanwhile
                pass
    return found


def only_these(names: "list[str]", environ: "dict[str, str]") -> "dict[str, str]":
    return {name: value for name, value in environ.items() if name in names or name == ALWAYS_KEPT}


def close_all_but(kept: "set[int]") -> None:
    for name in os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else map(str, range(1024)):
        if int(name) > 2 and int(name) not in kept:
            try:
                os.close(int(name))
            except OSError:  # the one that listed them
                pass


# -- control groups, of both versions


def enter_group(wanted: "dict[str, int]", *, name: str) -> "set[str]":
    """Into groups of our own, with `pids` and `memory` at most as wanted. Returns the controllers that hold."""
    held = set()
    with open("/proc/self/cgroup") as own, open("/proc/self/mountinfo") as mounts:
        trees = controllers(own.read(), mounts.read())
    for controller, (parent, version) in trees.items():
        if controller in wanted:
            try:
                _enter(parent, version, controller, wanted[controller], name)
                held.add(controller)
            except OSError:
                pass
    return held


def controllers(own: str, mounts: str) -> "dict[str, tuple[str, int]]":
    """For `pids` and `memory`: where a group of ours could be made, and the version of that tree. `own` and `mounts` as
    in /proc/self/cgroup and /proc/self/mountinfo."""
    paths: dict[str, str] = {}
    for line in own.splitlines():
        _, names, path = line.split(":", 2)
        paths.update(dict.fromkeys(names.split(","), path))
    found: dict[str, tuple[str, int]] = {}
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        root, mounted = before.split()[3:5]
        kind, _, options = after.split()[:3]
        if kind == "cgroup":
            for name in {"pids", "memory"} & set(options.split(",")):
                found[name] = (_within(mounted, root, paths.get(name, "/")), 1)
        elif kind == "cgroup2":
            ours = _within(mounted, root, paths.get("", "/"))
            for parent in (ours, os.path.dirname(ours)):
                for name in {"pids", "memory"} & _open_to_children(parent):
                    found.setdefault(name, (parent, 2))
    return found


def _within(mounted: str, root: str, path: str) -> str:
    inner = path[len(root) :] if root != "/" and path.startswith(root) else path
    return os.path.normpath(f"{mounted}/{inner}")


def _open_to_children(group: str) -> "set[str]":
    """The controllers that a child of this group would have, after asking for ours."""
    control = f"{group}/cgroup.subtree_control"
    for name in ("pids", "memory"):
        try:
            with open(control, "w") as file:
                file.write(f"+{name}")
        except OSError:  # not ours, or a group with processes of its own
            pass
    try:
        with open(control) as file:
            return set(file.read().split())
    except OSError:
        return set()


def _enter(parent: str, version: int, controller: str, most: int, name: str) -> None:
    for old in os.listdir(parent):
        if old.startswith("dragoman-") and old != name:
            try:
                os.rmdir(f"{parent}/{old}")  # succeeds only for one that is empty, whose process has ended
            except OSError:
                pass
    group, file_name = f"{parent}/{name}", f"{controller}.max"
    if version == 1 and controller == "memory":
        file_name = "memory.limit_in_bytes"
    for tries_left in (2, 1, 0):
        try:
            os.makedirs(group, exist_ok=True)
            with open(f"{group}/{file_name}", "w") as file:
                file.write(str(most))
            # We are one thread. To move a whole process the kernel waits until all others have looked away: 15 ms.
            with open(f"{group}/{'tasks' if version == 1 else 'cgroup.procs'}", "w") as file:
                file.write(str(os.getpid()))
            return
        except FileNotFoundError:  # swept away by another launcher in the moment before we were in it
            if not tries_left:
                raise


# -- the plan


def file() -> str:
    """What to give to the interpreter."""
    compiled = globals().get("__cached__")
    return compiled if compiled and os.path.exists(compiled) else os.path.abspath(__file__)


def written(plan: "dict[str, Any]") -> str:
    return binascii.b2a_base64(marshal.dumps(plan), newline=False).decode()


def read(text: str) -> "dict[str, Any]":
    found: dict[str, Any] = marshal.loads(binascii.a2b_base64(text))
    return found


# -- the steps


def outside(plan: "dict[str, Any]", command: "list[str]") -> None:
    kept: set[int] = set()
    inner = dict(plan["inner"])
    if plan.get("egress"):
        kept.add(_start_egress_proxy(plan["egress"]))
        inner["egress"] = next(iter(kept))
    _enter_own_group(plan["group"])
    environ = only_these(plan["variables"], dict(os.environ))
    if "TMPDIR" in environ:
        environ["TMPDIR"] = "/tmp"
    close_all_but(kept)
    filter = _in_memory("filter", plan["filter"])
    options = [*plan["bwrap"][1:], "--seccomp", str(filter)]
    # Not in the argument vector: process 1 inside is bubblewrap, and its arguments name our directories.
    arguments = _in_memory("options", b"\0".join(option.encode() for option in options))
    for descriptor in kept:
        os.set_inheritable(descriptor, True)
    again = [*plan["again"], written({"inside": inner}), "--", *command]
    os.execve(plan["bwrap"][0], [plan["bwrap"][0], "--args", str(arguments), "--", *again], environ)


def inside(plan: "dict[str, Any]", command: "list[str]") -> None:
    environ = only_these(plan["variables"], dict(os.environ))  # the interpreter and bubblewrap add some of their own
    if "egress" in plan:
        environ.update(_hand_over_listener(plan["egress"]))
    close_all_but(set())
    file = found(command[0], environ)
    limit(plan["limits"])
    landlock(plan["rules"], network="egress" in plan)
    os.execve(file, command, environ)


def alone(plan: "dict[str, Any]", command: "list[str]") -> None:
    _enter_own_group(plan["group"])
    environ = only_these(plan["variables"], dict(os.environ))
    close_all_but(set())
    try:
        os.setsid()
    except PermissionError:  # it leads its group already: the process that started us saw to that
        pass
    os.chdir(plan["cwd"])
    file = found(command[0], environ)
    limits = dict(plan["limits"])
    limits["processes"] += processes_of(os.getuid())
    limit(limits)
    drop_capabilities()
    landlock(plan["rules"], network=False)
    seccomp(plan["filter"])
    os.execve(file, command, environ)


def _enter_own_group(wanted: "dict[str, int]") -> None:
    held = enter_group(wanted, name=f"dragoman-{os.getpid()}")
    if os.geteuid() == 0 and "pids" not in held:
        raise SandboxNotBuilt("root is not bound by a limit of processes, and no control group can be made here")


def found(program: str, environ: "dict[str, str]") -> str:
    """By PATH, as exec would; but before the restrictions, under which our own library cannot be read any more."""
    if "/" in program:
        return program
    for place in environ.get("PATH", os.defpath).split(":"):
        file = f"{place or '.'}/{program}"
        if os.path.isfile(file) and os.access(file, os.X_OK):
            return file
    raise FileNotFoundError(errno.ENOENT, "it is not on the PATH inside", program)


def _start_egress_proxy(egress_proxy: "dict[str, Any]") -> int:
    """Start the egress proxy, which stays in our network; its listener is made inside and handed to it."""
    import json
    import socket

    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    parent = os.getpid()
    if os.fork() == 0:
        die_with(parent)
        close_all_but({theirs.fileno()})
        os.set_inheritable(theirs.fileno(), True)
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(null, 1)
        words = [*egress_proxy["command"], str(theirs.fileno()), json.dumps(egress_proxy["hosts"])]
        os.execve(words[0], words, {})
    theirs.close()
    return ours.detach()


def _hand_over_listener(descriptor: int) -> "dict[str, str]":
    import socket

    with socket.socket(fileno=descriptor) as proxy, socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(64)
        socket.send_fds(proxy, [b"listener"], [listener.fileno()])
        where = f"http://127.0.0.1:{listener.getsockname()[1]}"
    names = ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy")
    return dict.fromkeys(names, where)


def _in_memory(name: str, content: bytes) -> int:
    descriptor = os.memfd_create(name, 0)
    os.write(descriptor, content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _check(answer: int, what: str) -> int:
    if answer < 0:
        raise SandboxNotBuilt(f"{what}: {os.strerror(last_error())}")
    return answer


STEPS = {"outside": outside, "inside": inside, "alone": alone}


def main(words: "list[str]") -> "NoReturn":
    """`words`: the plan, `--`, the command."""
    command = words[2:]
    try:
        ((step, plan),) = read(words[0]).items()
        STEPS[step](plan, command)
        raise SandboxNotBuilt("nothing was started")
    except SandboxNotBuilt as why:
        reason = f"the sandbox could not be built: {why}"
    except OSError as error:
        reason = f"{error.filename or command[0]!r} cannot be started in the sandbox: {error.strerror}"
    os.write(2, f"dragoman: {reason}\n".encode("utf-8", "replace"))
    os._exit(REFUSED)


if __name__ == "__main__":
    main(sys.argv[1:])
