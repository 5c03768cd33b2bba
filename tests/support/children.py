"""Processes, looked at from outside: who runs, who is a zombie, and programs to be children."""

from __future__ import annotations

import os
import sys
from pathlib import Path

PYTHON = (sys.executable, "-I", "-S", "-c")


def stat(pid: int) -> tuple[str, int] | None:
    """State and parent of a process, or None if there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return fields[0].decode(), int(fields[1])


def runs(pid: int) -> bool:
    """Whether it runs; a zombie does not."""
    found = stat(pid)
    return found is not None and found[0] not in "ZX"


def children_of(pid: int) -> list[int]:
    numbers = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return [number for number in numbers if (found := stat(number)) is not None and found[1] == pid]


def zombies_of(pid: int) -> list[int]:
    return [child for child in children_of(pid) if (found := stat(child)) is not None and found[0] == "Z"]


def command_of(pid: int) -> bytes:
    """Its command line, or nothing if it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def program(*lines: str) -> tuple[str, ...]:
    """A Python program as a command: a bare interpreter, quick to start."""
    return (*PYTHON, "\n".join(lines))


DAEMON = """
import os, sys, time
out = sys.argv[1]
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        with open(out + '.part', 'w') as f:
            f.write(str(os.getpid()))
        os.rename(out + '.part', out)
        time.sleep(600)
    os._exit(0)
os.wait()
"""
"""Leaves behind a process in a session of its own, whose number it writes into a file."""


WORKER = """
import json, os, sys
def say(type, **payload):
    said = {'type': type, 'id': os.urandom(8).hex(), 'timestamp': '2026-01-01T00:00:00Z', 'payload': payload}
    print(json.dumps(said), flush=True)
for line in sys.stdin:
    heard = json.loads(line)
    if heard['type'] == 'notify:shutdown':
        break
    if heard['type'] != 'notify:task-assigned':
        continue
    task = heard['payload']['task']
    wish, id = task['payload'], task['id']
    print('working on', task['type'], flush=True)
    if wish.get('die') and task['attempt'] <= wish['die']:
        os._exit(9)
    if wish.get('hang'):
        continue
    say('event:progress', taskId=id, progress=0.5, output='half ')
    say('request:update-task', taskId=id, status='completed', result={'echo': wish, 'attempt': task['attempt']})
"""
"""A forge agent: does what it is given, dies in the first `die` attempts, or never ends if told to `hang`."""

worker = (*PYTHON, WORKER)
