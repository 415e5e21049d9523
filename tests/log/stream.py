"""A generated replication stream: XLogData frames, the changes in them, and logs written from them.

`Server` has a WAL position and commits transactions; like a slot, it can resend from any LSN. `read_frames` reads
frames, and `write` writes them to a log as capture does.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.pgoutput import build

from tailrace.change import OWN, UNCHANGED, Change, Column, Image, Lsn, Operation, Position, Relation, Type
from tailrace.log.reader import LogReader
from tailrace.log.segment import Header, SourceIdentity
from tailrace.log.writer import LogWriter
from tailrace.log_rows import LogRows, RowBatch
from tailrace.pgoutput import framing, message
from tailrace.pgoutput.framing import Frames, MessageIndex, OpenTransaction
from tailrace.store import Store

SOURCE = SourceIdentity("7000000000000000001", 1, "shop", "tailrace", "tailrace")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_START_US = 1_750_000_000_000_000


def relation(oid: int, name: str = "", version: int = 0, identity: str = "d", *, own: bool = False) -> Relation:
    """A relation with the key `id` and `version` additional columns. With `own`, one of Tailrace's tables."""
    columns = [
        Column("id", Type(23, "pg_catalog", "int4"), is_identity=True, number=1, nullable=False),
        Column("body", Type(25, "pg_catalog", "text"), is_identity=identity == "f", number=2),
    ]
    columns += [Column(f"extra{v}", Type(1700, "pg_catalog", "numeric"), number=3 + v) for v in range(version)]
    schema, comment = ("tailrace", f"{OWN} a table") if own else ("public", None)
    return Relation(oid, schema, name or f"t{oid}", identity, tuple(columns), ("id",), (), comment)


@dataclass
class SentTransaction:
    """The frames and commit LSN of one transaction, or of one message outside transactions."""

    frames: list[bytes]
    commit_lsn: int
    end_lsn: int
    changes: list[Change]


@dataclass
class Server:
    seed: int = 0
    lsn: int = 0x1_0000_0100
    sent: list[SentTransaction] = field(default_factory=list)
    relations: dict[int, Relation] = field(default_factory=dict)
    own: frozenset[int] = frozenset()
    """Oids of tables that are Tailrace's own at first, and sometimes later."""

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.relations.update((r.oid, r) for r in self._originals())

    @property
    def changes(self) -> list[Change]:
        return [change for sent in self.sent for change in sent.changes]

    @property
    def captured(self) -> list[Change]:
        """The changes that belong in the log."""
        return [c for c in self.changes if not (c.relation and c.relation.is_own) or c.operation is Operation.TRUNCATE]

    def work(self, transactions: int, largest: int = 8) -> Server:
        for _ in range(transactions):
            roll = self.rng.random()
            if roll < 0.1:
                self.message_alone()
            elif roll < 0.2:
                self.transaction(0, origin=self.rng.random() < 0.3)
            else:
                self.transaction(self.rng.randint(1, largest), origin=self.rng.random() < 0.1)
        return self

    def message_alone(self) -> None:
        self._advance()
        end_lsn, time = self.lsn, self._time()
        content = self.rng.randbytes(5)
        payload = b"M\x00" + struct.pack(">Q", end_lsn) + b"alone\0" + struct.pack(">I", 5) + content
        change = Change(
            Position(Lsn(end_lsn - 1), 0),
            Lsn(end_lsn),
            0,
            time,
            Operation.MESSAGE,
            prefix="alone",
            content=content,
            transactional=False,
        )
        self.sent.append(SentTransaction([frame(end_lsn, payload, time)], end_lsn - 1, end_lsn, [change]))

    def transaction(self, size: int, *, origin: bool = False) -> SentTransaction:
        xid, first_lsn = self.rng.randint(3, 2**32 - 1), self.lsn
        # Changes may be written before other transactions commit: only commits are in order.
        is_early = self.rng.random() < 0.3
        lsns = [first_lsn - self.rng.randint(0, 250) if is_early else self._advance() for _ in range(size)]
        commit_lsn, time = self._advance(), self._time()
        # A record ends where the next begins, which may be a commit.
        end_lsn = self.lsn = self.lsn + 40
        sent = SentTransaction([], commit_lsn, end_lsn, [])
        micros = _micros(time) - framing.EPOCH_SHIFT_US

        def send(lsn: int, payload: bytes) -> None:
            sent.frames.append(frame(lsn, payload, time))

        send(first_lsn, b"B" + struct.pack(">QqI", commit_lsn, micros, xid))
        if origin:
            send(first_lsn, b"O" + struct.pack(">Q", 7) + b"elsewhere\0")
        ordinal = 0
        for lsn in lsns:
            if self.rng.random() < 0.15:
                oid = self.rng.choice(list(self.relations))
                version, identity = self.rng.randint(0, 2), self.rng.choice("df")
                is_own = oid in self.own and self.rng.random() < 0.7
                self.relations[oid] = relation(oid, version=version, identity=identity, own=is_own)
                send(0, relation_message(self.relations[oid]))
            payload, made = self._change()
            send(lsn, payload)
            for operation, fields in made:
                position = Position(Lsn(commit_lsn), ordinal)
                sent.changes.append(Change(position, Lsn(lsn), xid, time, operation, **fields))
                ordinal += 1
        send(commit_lsn, b"C\0" + struct.pack(">QQq", commit_lsn, end_lsn, micros))
        self.sent.append(sent)
        return sent

    def frames(self, from_lsn: int = 0) -> list[bytes]:
        """What a slot confirmed up to this LSN sends. From LSN 0 it begins with all relations."""
        wanted = [f for sent in self.sent if sent.end_lsn > from_lsn for f in sent.frames]
        return [frame(0, relation_message(r), EPOCH) for r in self._originals()] + wanted if from_lsn == 0 else wanted

    def _originals(self) -> list[Relation]:
        return [relation(oid, own=oid in self.own) for oid in (100, 101, 102)]

    def _change(self) -> tuple[bytes, list[tuple[Operation, dict[str, Any]]]]:
        rng = self.rng
        one = rng.choice(list(self.relations.values()))
        values = [b"%d" % rng.randint(0, 99), rng.choice([None, b"text", b'"\xc3\xa9\n\\']), *[b"1.50", b"NaN"]]
        new: Image = tuple(values[: len(one.columns)])
        key = (b"%d" % rng.randint(0, 99), *[None] * (len(new) - 1))
        match rng.choice("IIIIUUUDDTM"):
            case "I":
                return build.insert(new, one.oid), [(Operation.INSERT, {"relation": one, "new": new})]
            case "U":
                new = (new[0], rng.choice([UNCHANGED, new[1]]), *new[2:])
                old, letter = rng.choice([(None, b""), (key, b"K"), (tuple(values[: len(new)]), b"O")])
                fields: dict[str, Any] = {"relation": one, "old": old, "old_is_key": letter == b"K", "new": new}
                return build.update(new, old, letter, one.oid), [(Operation.UPDATE, fields)]
            case "D":
                fields = {"relation": one, "old": key, "old_is_key": True}
                return build.delete(key, b"K", one.oid), [(Operation.DELETE, fields)]
            case "T":
                chosen = rng.sample(list(self.relations.values()), rng.randint(1, 3))
                payload = b"T" + struct.pack(">IB", len(chosen), 1) + struct.pack(f">{len(chosen)}I", *_oids(chosen))
                options = ("CASCADE",)
                return payload, [(Operation.TRUNCATE, {"relation": r, "truncate_options": options}) for r in chosen]
            case _:
                content = rng.choice([b"hello", b"\xff\x00", b"\\x41", b""])
                payload = b"M\x01" + struct.pack(">Q", self.lsn) + b"app\0" + struct.pack(">I", len(content)) + content
                return payload, [(Operation.MESSAGE, {"prefix": "app", "content": content})]

    def _advance(self) -> int:
        at = self.lsn
        self.lsn += self.rng.choice([40, 48, 200])
        return at

    def _time(self) -> datetime:
        return EPOCH + timedelta(microseconds=_START_US + len(self.sent) * 1_000_000 + self.rng.randrange(1000))


def _oids(relations: Sequence[Relation]) -> list[int]:
    return [r.oid for r in relations]


def _micros(time: datetime) -> int:
    return (time - EPOCH) // timedelta(microseconds=1)


def frame(lsn: int, payload: bytes, time: datetime) -> bytes:
    return b"w" + struct.pack(">QQq", lsn, lsn, _micros(time) - framing.EPOCH_SHIFT_US) + payload


def relation_message(relation: Relation) -> bytes:
    """A RELATION message: the inverse of `relation_of`."""
    text = f"{relation.schema}\0{relation.name}\0{relation.identity}".encode()
    columns = b"".join(
        struct.pack(">B", c.is_identity) + f"{c.name}\0".encode() + struct.pack(">Ii", c.type.oid, c.modifier)
        for c in relation.columns
    )
    return b"R" + struct.pack(">I", relation.oid) + text + struct.pack(">H", len(relation.columns)) + columns


def relation_of(payload: bytes) -> Relation:
    parsed = message.parse(payload)
    assert isinstance(parsed, message.RelationMessage)
    return relation(parsed.oid, parsed.name, len(parsed.columns) - 2, parsed.identity, own=parsed.schema == "tailrace")


def read_frames(
    frames: Sequence[bytes],
    transaction: OpenTransaction | None = None,
    skip_below: int = 0,
    own: set[int] | None = None,
) -> RowBatch:
    """Read frames. Updates `transaction` and `own`."""
    messages = MessageIndex.of(Frames.of(frames))
    described = [(at, relation_of(text)) for at, text in messages.descriptions()]
    own = set() if own is None else own
    batch = framing.read(messages, transaction or OpenTransaction(), skip_below, described, own)
    for _, one in described:
        (own.add if one.is_own else own.discard)(one.oid)
    return batch


def split_randomly(rng: random.Random, frames: Sequence[bytes], most: int = 12) -> Iterator[Sequence[bytes]]:
    at = 0
    while at < len(frames):
        size = rng.randint(1, most)
        yield frames[at : at + size]
        at += size


@dataclass
class Capture:
    """Writes frames to a log, one segment for each batch. A batch may end anywhere."""

    store: Store
    relations: dict[int, Relation] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.writer = LogWriter.open(self.store, SOURCE)
        self.skip_below = self.writer.end_lsn
        self.transaction = OpenTransaction()
        self.own: set[int] = set()

    def add(self, frames: Sequence[bytes]) -> Header | None:
        batch = read_frames(frames, self.transaction, self.skip_below, self.own)
        here = [(row, r) for row, r in batch.defined if row < len(batch.rows)]
        defined = [(0, r) for r in self.relations.values()] + here
        self.relations.update((r.oid, r) for _, r in batch.defined)
        if not len(batch.rows) and not batch.end_lsn:
            return None
        return self.writer.append(batch.rows, batch.committed_rows, Lsn(batch.end_lsn), defined)

    def idle(self, lsn: int) -> Header:
        return self.writer.append(LogRows.empty(), 0, Lsn(lsn))


def write(store: Store, server: Server, seed: int = 0, most: int = 12) -> Capture:
    """Write the whole stream, divided into segments at random."""
    capture = Capture(store)
    for part in split_randomly(random.Random(seed), server.frames(), most):
        capture.add(part)
    return capture


def read(store: Store) -> list[Change]:
    return list(LogReader(store).changes())
