"""A machine whose power can be cut: ext4 on a loop device, whose journal and dirty pages are thrown away.

Needs root, mount and mkfs.ext4; where one of them is missing, the test is skipped.
"""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
from pathlib import Path

import pytest

from tests.support.hubproc import until

ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="mounting a filesystem needs root")
FS_IOC_SHUTDOWN = 0x8004587D
NO_LOG_FLUSH = 2


def mount(*arguments: str | Path) -> None:
    done = subprocess.run(["mount", *map(str, arguments)], capture_output=True, text=True, timeout=60)
    if done.returncode:
        pytest.skip(f"this machine mounts nothing for us: {done.stderr.strip()}")


def unmount(place: Path) -> None:
    """A writer whose hub was killed may need a moment to end."""

    def gone() -> bool:
        return subprocess.run(["umount", str(place)], capture_output=True, timeout=60).returncode == 0

    until(gone, f"{place} is unmounted")


class Machine:
    def __init__(self, home: Path) -> None:
        self.image = home / "disk.img"
        self.place = home / "disk"
        self.place.mkdir()
        with self.image.open("wb") as file:
            file.truncate(96 << 20)
        made = subprocess.run(["mkfs.ext4", "-q", "-F", str(self.image)], capture_output=True, text=True, timeout=60)
        if made.returncode:
            pytest.skip(f"no ext4 can be made here: {made.stderr.strip()}")
        self.mounted = False
        self._starts = 0
        self.power_on()

    def power_on(self) -> None:
        """With a copy of what is on the disk: where another test's sandbox has mounts of its own, the old file system
        lives on in them, and the same image would be mounted as that one, without power."""
        disk = self.image.with_name(f"disk.img.{self._starts}")
        subprocess.run(["cp", "--sparse=always", str(self.image), str(disk)], check=True, timeout=60)
        self.image.unlink()
        self.image, self._starts = disk, self._starts + 1
        mount("-o", "loop", self.image, self.place)
        self.mounted = True

    def cut_power(self) -> None:
        """Nothing that was not on the disk gets there any more."""
        descriptor = os.open(self.place, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, FS_IOC_SHUTDOWN, struct.pack("I", NO_LOG_FLUSH))
        except OSError as error:
            pytest.skip(f"this kernel cuts no power: {error}")
        finally:
            os.close(descriptor)

    def power_off(self) -> None:
        if self.mounted:
            unmount(self.place)
            self.mounted = False

    def restart(self) -> None:
        """After a cut, when nothing of ours runs on it any more."""
        self.power_off()
        self.power_on()
