"""What every place for files promises."""

from __future__ import annotations

import hashlib
import itertools
import os
from contextlib import AsyncExitStack

import pytest

from dragoman.app.keys import DataVault
from dragoman.core.ids import ADMIN, SECOND, Instant
from dragoman.messages.faults import Kind, Refused
from dragoman.messages.files import FileRef, KeptFile
from dragoman.stores.files import DirectoryFiles, MemoryFiles, Room
from dragoman.stores.postgres.files import PostgresFiles
from dragoman.stores.postgres.pool import Pool
from dragoman.stores.s3_files import S3Objects
from tests.support import s3
from tests.support.postgres import shared_url
from tests.support.realms import realm

LARGE, QUOTA = 10_000, 25_000
"""Two fit, three do not, however a place counts what it writes beside them."""


def _mint():
    count = itertools.count(1)
    return lambda: f"00000000-0000-7000-8000-{next(count):012x}"


class Clock:
    """Moves when told."""

    now = Instant(1_800_000_000 * SECOND)

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture(params=["memory", "directory", "shut directory", "postgres", "s3"])
async def opened(request, tmp_path, clock, monkeypatch):
    """Opens the files of this test; again means after a restart (of memory, which forgets, only once)."""
    mint = _mint()
    kind = request.param
    vault = None if kind == "directory" else DataVault(tmp_path, clock)

    if kind == "memory":
        yield lambda **limits: MemoryFiles(mint, now=clock, largest=LARGE, **limits)
    elif kind.endswith("directory"):

        def of_directory(**limits):
            made = DirectoryFiles(tmp_path / "files", mint, now=clock, largest=LARGE, vault=vault, **limits)
            made.prepare()
            return made

        yield of_directory
    else:
        async with AsyncExitStack() as closing:
            name = await closing.enter_async_context(realm())
            if kind == "s3":
                for variable, value in s3.CREDENTIALS.items():
                    monkeypatch.setenv(variable, value)
                bucket = s3.make_bucket(name.replace("_", "-") + "-files")

            def of_postgres(**limits):
                pool = Pool(shared_url(), name)
                room = Room(largest=LARGE, quota=limits.get("quota", QUOTA), of_agent=limits.get("agent_quota", 0))
                place = S3Objects(bucket, name) if kind == "s3" else None
                made = PostgresFiles(pool, mint, now=clock, vault=vault, room=room, place=place)
                closing.push_async_callback(made.close)
                return made

            yield of_postgres


@pytest.fixture
def files(opened):
    return opened(quota=QUOTA)


async def refused(kept) -> Kind:
    with pytest.raises(Refused) as refusal:
        await kept
    return refusal.value.fault.kind


async def test_what_is_kept_can_be_fetched_and_is_described(files):
    data = b"\0binary\n\xff"
    ref = await files.keep(data, name="../../x.bin", mime_type="image/png", owner="a1")
    sha256 = hashlib.sha256(data).hexdigest()
    assert ref == FileRef(id=ref.id, name="x.bin", mime_type="image/png", size=len(data), sha256=sha256)
    assert await files.fetch(ref.id) == data
    assert await files.describe(ref.id) == KeptFile(ref=ref, owner="a1")


async def test_a_dropped_file_is_gone_and_its_room_is_free(files):
    kept = [await files.keep(b"x" * LARGE, name="x", mime_type="") for _ in range(2)]
    assert await refused(files.keep(b"x" * LARGE, name="x", mime_type="")) is Kind.RESOURCES
    await files.drop(kept[0].id)
    assert await files.fetch(kept[0].id) is None
    await files.drop(kept[0].id)
    assert (await files.keep(b"x" * LARGE, name="x", mime_type="")).mime_type == "application/octet-stream"


async def test_files_that_come_and_go_neither_make_nor_take_room(files):
    for _ in range(100):
        await files.drop((await files.keep(b"x" * 10, name="x", mime_type="a/b")).id)
    for _ in range(2):
        await files.keep(b"x" * LARGE, name="x", mime_type="a/b")
    assert await refused(files.keep(b"x" * LARGE, name="x", mime_type="a/b")) is Kind.RESOURCES


@pytest.mark.parametrize("restarted", [False, True])
async def test_an_agent_has_a_quota_of_its_own_beside_the_hubs(opened, restarted):
    files = opened(agent_quota=QUOTA, quota=100 * LARGE)
    kept = [await files.keep(b"x" * LARGE, name="x", mime_type="", owner="a1") for _ in range(2)]
    if restarted and not isinstance(files, MemoryFiles):
        files = opened(agent_quota=QUOTA, quota=100 * LARGE)
    with pytest.raises(Refused, match=r"files of a1 would exceed 25000 bytes: remove some .*agent_quota_bytes"):
        await files.keep(b"x" * LARGE, name="x", mime_type="", owner="a1")
    await files.keep(b"x" * LARGE, name="x", mime_type="", owner="a2")
    for _ in range(3):
        await files.keep(b"x" * LARGE, name="x", mime_type="", owner=ADMIN)  # people have the hub's alone
    await files.drop(kept[0].id)
    await files.keep(b"x" * LARGE, name="x", mime_type="", owner="a1")


async def test_what_is_kept_is_listed_in_order_and_page_by_page(files):
    kept = [await files.keep(b"x", name=f"{number}", mime_type="", owner="a1") for number in range(3)]
    first = await files.listing(after="", limit=2)
    assert first == [KeptFile(ref=ref, owner="a1") for ref in kept[:2]]
    assert [one.ref for one in await files.listing(after=kept[1].id, limit=2)] == kept[2:]


async def test_describing_a_file_claims_it_for_a_moment(files, clock):
    ref = await files.keep(b"x", name="x", mime_type="")
    await files.describe(ref.id, claim=False)
    assert not await files.is_claimed(ref.id, Instant(clock.now - SECOND))
    await files.describe(ref.id)
    assert await files.is_claimed(ref.id, Instant(clock.now - SECOND))
    clock.now = Instant(clock.now + 2 * SECOND)
    assert not await files.is_claimed(ref.id, Instant(clock.now - SECOND))


@pytest.mark.parametrize(
    ("name", "said", "type"),
    [
        ("a.png", "", "image/png"),
        ("a.png", "application/x-www-form-urlencoded", "image/png"),
        ("A.MD", "multipart/form-data; boundary=x", "text/markdown"),
        ("a.txt", "text/plain; charset=utf-8", "text/plain; charset=utf-8"),
        ("a.png", "text/x-own", "text/x-own"),
        ("a.tar.gz", "", "application/gzip"),
        ("a.csv", "", "text/csv"),
        ("a.json", "", "application/json"),
        ("unknown", "", "application/octet-stream"),
        ("../x.html", "a\nb", "text/html"),
        ("", "", "application/octet-stream"),
    ],
)
async def test_a_file_has_the_declared_type_or_that_of_its_name(files, name, said, type):
    assert (await files.keep(b"x", name=name, mime_type=said)).mime_type == type


async def test_one_file_too_large_is_refused(files):
    assert await refused(files.keep(b"x" * (LARGE + 1), name="x", mime_type="a/b")) is Kind.TOO_LARGE


@pytest.mark.parametrize("id", ["../secret", "/etc/passwd", "", "x" * 36, "00000000-0000-7000-8000-000000000099"])
async def test_no_id_leads_anywhere_else(files, id, tmp_path):
    (tmp_path / "secret").write_text("s")
    assert await files.fetch(id) is None
    assert await files.describe(id) is None
    await files.drop(id)
    assert (tmp_path / "secret").exists()


async def test_a_crash_leaves_no_half_file_and_the_quota_is_counted_at_start(tmp_path):
    first = DirectoryFiles(tmp_path / "files", _mint(), now=Clock())
    first.prepare()
    ref = await first.keep(b"x" * 90, name="x", mime_type="a/b")
    (tmp_path / "files" / "half.part").write_bytes(b"x")
    second = DirectoryFiles(tmp_path / "files", _mint(), now=Clock(), quota=100)
    second.prepare()
    assert os.listdir(tmp_path / "files") == [ref.id]
    assert await refused(second.keep(b"x" * 20, name="x", mime_type="a/b")) is Kind.RESOURCES
    assert (os.stat(tmp_path / "files").st_mode & 0o777, os.stat(tmp_path / "files" / ref.id).st_mode & 0o777) == (
        0o700,
        0o600,
    )


async def unwanted(files, before) -> set[str]:
    return {id async for page in files.unwanted(before) for id in page}


async def test_a_file_is_unwanted_when_nobody_kept_or_described_it_since(files, clock):
    first, second = [await files.keep(b"x" * LARGE, name="x", mime_type="") for _ in range(2)]
    begin = clock.now
    assert await unwanted(files, begin) == set()
    assert await unwanted(files, begin + 1) == {first.id, second.id}
    clock.now += SECOND
    assert await files.describe(first.id) is not None  # whoever asks may be about to name it in a task
    assert await unwanted(files, begin + 1) == {second.id}
    assert [await files.drop_unwanted(file.id, begin + 1) for file in (first, second, second)] == [False, True, False]
    assert (await files.fetch(first.id) is None, await files.describe(second.id)) == (False, None)
    third = await files.keep(b"x" * LARGE, name="x", mime_type="")  # its room is free
    assert await unwanted(files, clock.now + 1) == {first.id, third.id}


async def test_the_age_of_a_file_survives_a_restart(tmp_path, clock):
    first = DirectoryFiles(tmp_path / "files", _mint(), now=clock)
    first.prepare()
    ref = await first.keep(b"x", name="x", mime_type="")
    (tmp_path / "files" / "readme").write_text("not ours")
    second = DirectoryFiles(tmp_path / "files", _mint(), now=clock)
    second.prepare()
    assert (await unwanted(second, clock.now), await unwanted(second, clock.now + 1)) == (set(), {ref.id})


async def test_with_a_vault_nothing_can_be_read_without_its_key_and_older_files_still_can(tmp_path, clock):
    plain = DirectoryFiles(tmp_path / "files", mint := _mint(), now=clock)
    plain.prepare()
    older = await plain.keep(b"older", name="a.txt", mime_type="text/plain")
    shut = DirectoryFiles(tmp_path / "files", mint, now=clock, vault=DataVault(tmp_path, clock))
    kept = await shut.keep(b"whose blood", name="Erika.txt", mime_type="text/plain", owner="the-laboratory")
    assert (await shut.fetch(older.id), await shut.fetch(kept.id)) == (b"older", b"whose blood")
    written = (tmp_path / "files" / kept.id).read_bytes()
    assert not any(words in written for words in (b"blood", b"Erika", b"laboratory"))
    assert await refused(plain.fetch(kept.id)) is Kind.OVERLOADED
    assert await refused(plain.describe(kept.id)) is Kind.OVERLOADED
