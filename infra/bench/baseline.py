"""The yardstick for a mirror: what a good afternoon in Python gives. Postgres' pgoutput stream (protocol 1, values as
text), decoded here and written into SQLite in groups of source transactions.

    baseline.py copy   --dsn DSN --db FILE
    baseline.py follow --dsn DSN --db FILE --slot NAME --publication NAME [--group-ms 50]

It has no archive, no fan-out, no exact types and no durability before it acknowledges; that is what it is measured for.
"""

import argparse
import select
import signal
import sqlite3
import struct
import time

import psycopg2
from psycopg2.extras import LogicalReplicationConnection

TABLES = """
    create table if not exists bench_item (
        id integer primary key, hits integer, score integer, stamp integer, price text, seen text, tag text,
        label text, active integer, details text);
    create table if not exists bench_mark (id integer primary key, n integer, note text);
"""
ROWS_AT_ONCE = 10_000
FEEDBACK_S = 1.0
BOOL = 16
UNCHANGED = object()  # a TOASTed value that the update left as it was

BEGIN, COMMIT, INSERT, UPDATE, DELETE, RELATION = b"BCIUDR"
NULL, TEXT = b"nt"
OLD_KEY, OLD_ROW = b"KO"

int16 = struct.Struct(">H").unpack_from
int32 = struct.Struct(">I").unpack_from
int64 = struct.Struct(">Q").unpack_from


def open_mirror(path):
    mirror = sqlite3.connect(path, isolation_level=None)
    mirror.execute("pragma journal_mode = wal")
    mirror.execute("pragma synchronous = normal")
    mirror.executescript(TABLES)
    return mirror


def copy(dsn, path):
    mirror = open_mirror(path)
    source = psycopg2.connect(dsn)
    source.set_session(isolation_level="REPEATABLE READ", readonly=True)
    items = source.cursor("items")
    items.itersize = ROWS_AT_ONCE
    items.execute(
        "select id, hits, score, stamp, price::text, seen::text, tag, label, active::int, details::text from bench_item"
    )
    mirror.execute("begin")
    while rows := items.fetchmany(ROWS_AT_ONCE):
        mirror.executemany("insert into bench_item values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)
    marks = source.cursor()
    marks.execute("select id, n, note from bench_mark")
    mirror.executemany("insert or replace into bench_mark values (?, ?, ?)", marks.fetchall())
    mirror.execute("commit")


class Table:
    """A relation message: how its rows are written."""

    def __init__(self, message):
        end = message.index(0, 5)  # of the schema's name
        start, end = end + 1, message.index(0, end + 1)
        self.name = message[start:end].decode()
        count = int16(message, end + 2)[0]
        at = end + 4
        self.columns, self.bools = [], []
        for number in range(count):
            end = message.index(0, at + 1)
            self.columns.append(message[at + 1 : end].decode())
            if int32(message, end + 1)[0] == BOOL:
                self.bools.append(number)
            at = end + 9
        self.insert = f"insert or replace into {self.name} values ({', '.join('?' * count)})"
        self.update = self.update_of(self.columns)
        self.delete = f"delete from {self.name} where {self.columns[0]} = ?"

    def update_of(self, columns):
        sets = ", ".join(f"{column} = ?" for column in columns)
        return f"update {self.name} set {sets} where {self.columns[0]} = ?"

    def row(self, message, at):
        """The values that start at `at`, and where they end."""
        values = []
        add = values.append
        count = int16(message, at)[0]
        at += 2
        for _ in range(count):
            kind = message[at]
            if kind == TEXT:
                start = at + 5
                at = start + int32(message, at + 1)[0]
                add(message[start:at].decode())
            else:
                add(None if kind == NULL else UNCHANGED)
                at += 1
        for number in self.bools:
            if values[number] is not None:
                values[number] = values[number] == "t"
        return values, at


class Follower:
    def __init__(self, mirror, stream, group_s):
        self.mirror, self.stream, self.group_s = mirror, stream, group_s
        self.tables = {}
        self.grouping = False  # a SQLite transaction is open
        self.inside = False  # a source transaction is open
        self.group_since = self.told = 0.0
        self.lsn = self.shown = 0  # end of the last source transaction received; of the last one in the file
        self.stopping = False

    def run(self):
        read, clock = self.stream.read_message, time.monotonic
        while not self.stopping:
            message = read()
            if message is not None:
                self.apply(message.payload)
                continue
            # Nothing more for the moment: what is complete is shown at once.
            if self.grouping and not self.inside:
                self.show()
                self.tell()
            select.select([self.stream], [], [], self.group_s)
        if self.grouping and not self.inside:
            self.show()
        if self.shown:
            self.stream.send_feedback(write_lsn=self.shown, flush_lsn=self.shown, force=True)

    def apply(self, message):
        kind = message[0]
        if kind == UPDATE:
            self.apply_update(message)
        elif kind == INSERT:
            table = self.tables[int32(message, 1)[0]]
            self.mirror.execute(table.insert, table.row(message, 6)[0])
        elif kind == DELETE:
            table = self.tables[int32(message, 1)[0]]
            self.mirror.execute(table.delete, table.row(message, 6)[0][:1])
        elif kind == BEGIN:
            self.inside = True
            if not self.grouping:
                self.mirror.execute("begin")
                self.grouping = True
                self.group_since = time.monotonic()
        elif kind == COMMIT:
            self.inside = False
            self.lsn = int64(message, 10)[0]
            now = time.monotonic()
            if now - self.group_since >= self.group_s:
                self.show()
                if now - self.told > FEEDBACK_S:
                    self.tell()
        elif kind == RELATION:
            self.tables[int32(message, 1)[0]] = Table(message)

    def apply_update(self, message):
        table = self.tables[int32(message, 1)[0]]
        at, old = 5, None
        if message[5] in (OLD_KEY, OLD_ROW):
            old, at = table.row(message, 6)
        values, _ = table.row(message, at + 1)
        key = (old or values)[0]
        if UNCHANGED in values:
            came = [n for n, value in enumerate(values) if value is not UNCHANGED]
            statement = table.update_of([table.columns[n] for n in came])
            self.mirror.execute(statement, [values[n] for n in came] + [key])
        else:
            values.append(key)
            self.mirror.execute(table.update, values)

    def show(self):
        self.mirror.execute("commit")
        self.grouping = False
        self.shown = self.lsn

    def tell(self):
        self.stream.send_feedback(write_lsn=self.shown, flush_lsn=self.shown)
        self.told = time.monotonic()

    def stop(self, _signal, _frame):
        self.stopping = True


def follow(dsn, path, slot, publication, group_ms):
    mirror = open_mirror(path)
    stream = psycopg2.connect(dsn, connection_factory=LogicalReplicationConnection).cursor()
    options = {"proto_version": "1", "publication_names": publication}
    stream.start_replication(slot_name=slot, decode=False, options=options)
    follower = Follower(mirror, stream, group_ms / 1000)
    signal.signal(signal.SIGTERM, follower.stop)
    follower.run()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("work", choices=["copy", "follow"])
    parser.add_argument("--dsn", required=True)
    parser.add_argument("--db", required=True)
    parser.add_argument("--slot")
    parser.add_argument("--publication")
    parser.add_argument("--group-ms", type=float, default=50)
    args = parser.parse_args()
    if args.work == "copy":
        copy(args.dsn, args.db)
    else:
        follow(args.dsn, args.db, args.slot, args.publication, args.group_ms)


if __name__ == "__main__":
    main()
