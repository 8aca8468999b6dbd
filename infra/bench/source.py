"""The benchmark's Postgres: a server of its own on a free port, its rows, its load, its marks."""

import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import psycopg2
from processes import Failed, Program, Server

HERE = Path(__file__).parent
BIN = Path("/usr/lib/postgresql/15/bin")
PUBLICATION = "rindle_bench"
# Defaults but for these. Sessions are not cut while a consumer is stopped. Neither a checkpoint nor a vacuum comes by
# chance into one run and not into another, and the WAL of a load has the same size wherever the last checkpoint was.
CONF = """
listen_addresses = '127.0.0.1'
wal_level = logical
max_wal_senders = 20
max_replication_slots = 20
wal_sender_timeout = '30min'
max_wal_size = '64GB'
checkpoint_timeout = '1h'
full_page_writes = off
autovacuum = off
timezone = 'UTC'
"""
PINNED = "set timezone = 'UTC'; set datestyle = 'ISO, YMD'; set intervalstyle = 'postgres'; set extra_float_digits = 3"
SLOT_KEEPS_AT_MOST = 256 << 10


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Source:
    def __init__(self, folder):
        folder.mkdir()
        user = "postgres" if os.geteuid() == 0 else None
        if user:
            shutil.chown(folder, user, user)
        data, self.log = folder / "data", folder / "log"
        self.log.touch()
        initdb = [BIN / "initdb", "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "-N", "--locale=C.UTF-8"]
        Program("initdb", initdb, self.log, as_user=user).finish(120)
        self.port = free_port()
        with open(data / "postgresql.conf", "a", encoding="utf-8") as conf:
            conf.write(f"{CONF}port = {self.port}\nunix_socket_directories = '{folder}'\n")
        argv = [BIN / "postgres", "-D", data]
        self.program = Program("postgres", argv, self.log, as_user=user, stop_with=signal.SIGINT)
        self.cpu = Server(self.program.pid)
        self.dsn = f"host=127.0.0.1 port={self.port} user=postgres dbname=postgres"
        self.session = self._connect()
        self.marks = 0
        self.sql(PINNED)

    def _connect(self):
        until = time.monotonic() + 60
        while True:
            self.program.must_run()
            try:
                session = psycopg2.connect(self.dsn)
                session.autocommit = True
                return session
            except psycopg2.OperationalError as error:
                if time.monotonic() > until:
                    raise Failed(f"Postgres does not answer: {error}\n{self.program.tail()}") from error
                time.sleep(0.05)

    def sql(self, statement, values=None):
        """Runs a statement; gives its rows."""
        with self.session.cursor() as cursor:
            cursor.execute(statement, values)
            return cursor.fetchall() if cursor.description else []

    def value(self, statement, values=None):
        return self.sql(statement, values)[0][0]

    def fill(self, rows):
        self.sql((HERE / "schema.sql").read_text(encoding="utf-8"))
        self.sql("insert into bench_item select * from bench_rows(1, %s)", (rows,))
        # Hint bits are set here, not in the first copy that is measured.
        self.sql("vacuum (freeze, analyze)")
        self.sql("checkpoint")

    def publish(self):
        """For a run without the product, which makes the publication itself."""
        self.sql(f"create publication {PUBLICATION} for table bench_item, bench_mark")

    def mark(self):
        """Commits the next mark. Gives it, a position before its commit and one at or behind the commit's end."""
        self.marks += 1
        self.sql("begin")
        self.sql("update bench_mark set n = %s, note = %s where id = 1", (self.marks, f"mark {self.marks}"))
        before = self.value("select pg_current_wal_insert_lsn()")
        self.sql("commit")
        return self.marks, lsn(before), self.value("select pg_current_wal_insert_lsn()")

    def load(self, call, values):
        """Runs a load; its commits need not wait for the disk, its mark does."""
        self.sql("set synchronous_commit = off")
        self.sql(call, values)
        self.sql("set synchronous_commit = on")

    def make_slot(self, name):
        self.sql("select pg_create_logical_replication_slot(%s, 'pgoutput')", (name,))

    def drop_slots(self, like, within=30):
        until = time.monotonic() + within
        while self.value("select count(*) from pg_replication_slots where slot_name like %s and active", (like,)):
            if time.monotonic() > until:
                raise Failed(f"a slot like {like} is still in use")
            time.sleep(0.02)
        drop = "select pg_drop_replication_slot(slot_name) from pg_replication_slots where slot_name like %s"
        self.sql(drop, (like,))

    def settle(self, like, within=60):
        """Lets a slot that is being read move up to the present, so that it has no older WAL to read again."""
        gap = """select max(pg_wal_lsn_diff(pg_current_wal_insert_lsn(), restart_lsn))::bigint
                 from pg_replication_slots where slot_name like %s"""
        until = time.monotonic() + within
        while True:
            left = self.value(gap, (like,))
            if left is None:
                raise Failed(f"there is no slot like {like}")
            if left <= SLOT_KEEPS_AT_MOST or time.monotonic() > until:
                return left
            # A checkpoint writes the list of running transactions that a slot can move to.
            self.sql("checkpoint")
            self.mark()
            time.sleep(0.3)

    def walsender(self):
        """The process that serves the only consumer there is."""
        rows = self.sql("select pid from pg_stat_replication order by backend_start desc limit 1")
        return rows[0][0] if rows else None

    def text_of_items(self, into):
        """Every row as text, in the order of the key, by a COPY of its own; `into` is given bytes."""
        query = """copy (select id, hits, score, stamp, price, seen, tag, label, active::int, details
                         from bench_item order by id) to stdout"""
        with self.session.cursor() as cursor:
            cursor.copy_expert(query, into)

    def run(self, name, tool, *args, log, out=None):
        """A program of Postgres against this server."""
        connection = ["-h", "127.0.0.1", "-p", self.port, "-U", "postgres"]
        return Program(name, [BIN / tool, *connection, *args], log, out=out)


def lsn(text):
    high, low = text.split("/")
    return int(high, 16) << 32 | int(low, 16)


def pg_version():
    return subprocess.run([BIN / "postgres", "--version"], capture_output=True, text=True, check=True).stdout.split()[2]
