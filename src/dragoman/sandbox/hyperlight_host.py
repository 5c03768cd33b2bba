"""The process that a Hyperlight guest belongs to; imports nothing of ours, so that any interpreter can run it.

python -I hyperlight_host.py PLAN -- FILE      the source in FILE; exit code its own, 124 when its time is over
python -I hyperlight_host.py --self-test       one line of JSON: version, what broke, the probes
"""

import json
import os
import sys
import threading
from typing import Any

PACKAGES = ("hyperlight-sandbox", "hyperlight-sandbox-backend-wasm", "hyperlight-sandbox-python-guest")
TIME, BROKEN = 124, 126
TRY = """
try:
    {attempt}
    print("GOT IT")
except BaseException as error:
    print("REFUSED", type(error).__name__)
"""
ATTEMPTS = (
    ("read a file outside", "open('/etc/passwd').read()"),
    ("list a directory outside", "__import__('os').listdir('/etc')"),
    ("write a file outside", "open('/tmp/dragoman-trial', 'w').write('got out')"),
    ("connect to the host", "__import__('socket').create_connection(('127.0.0.1', 22), 1)"),
    ("start a process", "__import__('os').fork()"),
    ("run a program", "__import__('subprocess').run(['/bin/true'])"),
    ("take more memory", "bytearray(1 << 31)"),
    ("find a secret in the environment", "__import__('os').environ['DRAGOMAN_PROBE_SECRET']"),
)


def missing() -> "str | None":
    from importlib import metadata

    for name in PACKAGES:
        try:
            metadata.version(name)
        except metadata.PackageNotFoundError:
            return name
    return None


def guest(memory_mb: int) -> Any:
    import hyperlight_sandbox

    return hyperlight_sandbox.Sandbox(backend="wasm", module="python_guest.path", heap_size=f"{memory_mb}Mi")


def self_test() -> "dict[str, Any]":
    absent = missing()
    if absent is not None:
        return {"version": None, "missing": absent}
    import hyperlight_sandbox

    found: dict[str, Any] = {"version": hyperlight_sandbox.__version__}
    os.environ["DRAGOMAN_PROBE_SECRET"] = "secret"
    try:
        inside = guest(25)
        alive = inside.run("print(6 * 7)").stdout.strip()
        if alive != "42":
            return {**found, "broke": f"a guest that should print 42 printed {alive!r}"}
        found["trials"] = []
        for name, attempt in ATTEMPTS:
            output = inside.run(TRY.format(attempt=attempt)).stdout.strip()
            found["trials"].append([name, output.startswith("REFUSED"), output])
    except Exception as error:
        return {**found, "broke": str(error)}
    return found


def run(plan: "dict[str, Any]", file: str) -> int:
    def over() -> None:
        threading.Event().wait(plan["seconds"])
        os.write(2, b"dragoman: the guest has used up its time\n")
        os._exit(TIME)

    threading.Thread(target=over, daemon=True).start()
    try:
        with open(file) as source:
            outcome = guest(plan["memory_mb"]).run(source.read())
    except Exception as error:
        os.write(2, f"dragoman: no guest runs: {error}\n".encode("utf-8", "replace"))
        return BROKEN
    sys.stdout.write(outcome.stdout)
    sys.stderr.write(outcome.stderr)
    sys.stdout.flush()
    return int(outcome.exit_code)


def main(words: "list[str]") -> int:
    if words[0] == "--self-test":
        sys.stdout.write(json.dumps(self_test()) + "\n")
        return 0
    return run(json.loads(words[0]), words[2])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
