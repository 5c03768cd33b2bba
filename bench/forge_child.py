"""A forge agent as anybody might write one: a program that reads and writes JSON lines, without any library.

It runs as a child of the hub under measurement. What it does with a task depends on the task's type:

    anything      completed at once, by request:update-task
    flood-bytes   1 GB on stdout without a newline, then completed
    flood-lines   lines on stdout as fast as they go, for payload.seconds, then completed
"""

from __future__ import annotations

import json
import os
import sys
import time

GIGABYTE = 1_000_000_000
RESULT = {"output": "Deployment completed successfully.\nKuma instance running.\nMonitored services: 5"}
AGAIN = 0.05
"""Seconds until a refused report is sent again: the protocol allows 100 messages a second."""


def say(task: str, **more: object) -> None:
    payload = {"taskId": task, **more}
    message = {"type": "request:update-task", "id": task, "timestamp": "2026-02-04T14:30:00Z", "payload": payload}
    put(json.dumps(message).encode() + b"\n")


def put(data: bytes) -> int:
    written = 0
    while written < len(data):
        written += os.write(1, data[written:])
    return written


def flood_bytes() -> None:
    piece = b"x" * 1_000_000
    for _ in range(GIGABYTE // len(piece)):
        put(piece)
    put(b"\n")


def flood_lines(seconds: float) -> None:
    piece = b"all work and no play makes jack a dull boy\n" * 1000
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        put(piece)


def main() -> None:
    for line in sys.stdin.buffer:
        message = json.loads(line)
        if message["type"] == "notify:task-assigned":
            task = message["payload"]["taskId"]
            what = message["payload"].get("task", {})
            if what.get("type") == "flood-bytes":
                flood_bytes()
            elif what.get("type") == "flood-lines":
                flood_lines(what["payload"]["seconds"])
            say(task, status="completed", result=RESULT)
        elif message["type"] == "response:error":
            if message["error"].get("details", {}).get("reason") != "RATE_LIMITED":
                sys.exit(f"refused: {message['error']}")
            time.sleep(AGAIN)
            say(message["correlationId"], status="completed", result=RESULT)
        elif message["type"] == "notify:shutdown":
            return


if __name__ == "__main__":
    main()
