"""Who changes a record makes its hash anew, if he knows how: then it is the next one that does not follow, and behind
the last one there is what is kept apart."""

from __future__ import annotations

from msgspec.structs import replace

from dragoman.core.ids import Instant
from dragoman.core.model.audit import GENESIS, AuditRecord, Broken, Newest, cut_short, seal, sealed, verify


def chain(count: int) -> list[AuditRecord]:
    records: list[AuditRecord] = []
    for seq in range(1, count + 1):
        prev = records[-1].hash if records else GENESIS
        records.append(sealed(seq, Instant(seq), prev, "eve", "task.submit", "refused", "x", None, "no", None))
    return records


def forged(record: AuditRecord) -> AuditRecord:
    return seal(replace(record, outcome="accepted", reason=None))


def test_a_chain_holds() -> None:
    records = chain(3)
    seq, last, broken = verify(records)
    assert (seq, last, broken) == (3, records[-1].hash, None)
    assert cut_short(seq, last, Newest(3, records[-1].hash)) is None


def test_a_forged_record_with_a_hash_of_its_own_is_given_away_by_the_next() -> None:
    first, second, third = chain(3)
    seq, _, broken = verify([first, forged(second), third])
    assert (seq, broken) == (2, Broken(3, "record 3 does not follow the one before it"))


def test_a_forged_last_record_is_not_the_one_that_was_written() -> None:
    first, second, third = chain(3)
    seq, last, broken = verify([first, second, forged(third)])
    assert (seq, broken) == (3, None)
    assert cut_short(seq, last, Newest(3, third.hash)) == Broken(3, "record 3 is not the one that was written")


def test_records_that_are_missing_at_the_end_are_missed() -> None:
    first, *rest = chain(3)
    seq, last, broken = verify([first])
    assert (seq, broken) == (1, None)
    missed = cut_short(seq, last, Newest(3, rest[-1].hash))
    assert missed is not None
    assert missed.seq == 2


def test_everything_a_record_says_is_in_its_hash() -> None:
    (record,) = chain(1)
    for field in AuditRecord.__struct_fields__:
        if field != "hash":
            other = 7 if isinstance(getattr(record, field), int) else "other"
            assert seal(replace(record, **{field: other})).hash != record.hash, field
