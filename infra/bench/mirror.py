"""Looks into a mirror's SQLite from outside, as any reader would, and compares it with the source."""

import hashlib
import os
import sqlite3

ITEMS = """
    select id, hits, score, stamp, price, seen, tag, label, active, details from bench_item order by id
"""
# What SQLite must hold: a mirror whose values only look right when printed is wrong.
ODD_TYPES = """
    select count(*) from bench_item where typeof(id) <> 'integer' or typeof(hits) <> 'integer'
    or typeof(score) <> 'integer' or typeof(stamp) <> 'integer' or typeof(price) <> 'text' or typeof(seen) <> 'text'
    or typeof(tag) <> 'text' or typeof(label) <> 'text' or typeof(active) <> 'integer' or typeof(details) <> 'text'
"""


class Mirror:
    """A read connection of its own, opened anew when another file takes the name."""

    def __init__(self, path):
        self.path = str(path)
        self._connection = None
        self._inode = None

    def newest(self):
        """The newest mark that the mirror shows; None while it shows no tables or is not there."""
        return self._value("select n from bench_mark where id = 1")

    def holds(self, mark, last_row):
        """True when the mirror shows the mark and the row with the highest key."""
        return self.newest() == mark and self._value("select max(id) from bench_item") == last_row

    def _value(self, query):
        try:
            inode = os.stat(self.path).st_ino
            if inode != self._inode:
                self.close()
                self._connection = sqlite3.connect(f"file:{self.path}?mode=ro", uri=True, timeout=0)
                self._inode = inode
            row = self._connection.execute(query).fetchone()
            return row and row[0]
        except (FileNotFoundError, sqlite3.DatabaseError):
            return None

    def close(self):
        if self._connection:
            self._connection.close()
        self._connection = self._inode = None


class _Digest:
    def __init__(self):
        self.md5, self.rows = hashlib.md5(), 0

    def write(self, data):
        self.md5.update(data)
        self.rows += data.count(b"\n")


def difference(source, path):
    """What differs between the source, which must be quiet, and a mirror; None when they are equal. Every value of
    every row is compared, by a digest over the text that each database gives by itself."""
    wanted = _Digest()
    source.text_of_items(wanted)
    found = _Digest()
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=30)
    try:
        rows = connection.execute(ITEMS)
        while some := rows.fetchmany(10_000):
            lines = ["\t".join([r"\N" if value is None else str(value) for value in row]) for row in some]
            found.write(("\n".join(lines) + "\n").encode())
        odd = connection.execute(ODD_TYPES).fetchone()[0]
        mark = connection.execute("select id, n, note from bench_mark").fetchall()
    finally:
        connection.close()
    if wanted.rows != found.rows:
        return f"{found.rows} rows instead of {wanted.rows}"
    if wanted.md5.digest() != found.md5.digest():
        return f"some of {wanted.rows} rows have other values"
    if odd:
        return f"{odd} rows hold values of other SQLite types"
    if mark != source.sql("select id, n, note from bench_mark"):
        return f"the mark is {mark}"
    return None
