"""W2 and W3: what was committed while nobody read. Each consumer finds the same WAL: many small transactions, or one
large one. Limit: pg_recvlogical, which writes the same stream to nowhere."""

import time

from processes import Failed
from source import PUBLICATION

RECV_SLOT, SCRIPT_SLOT = "bench_recv", "bench_script"


def small_transactions(bench):
    """W2."""
    sizes = bench.sizes
    inserted = sizes.backlog // 5

    def load(turn):
        call = "call bench_backlog(%s, %s, %s, %s, %s, %s)"
        ids = (1_000_000_000 + turn * 10_000_000, 1 + turn * inserted)
        bench.source.load(call, (sizes.backlog, turn, bench.update_from, bench.span, *ids))

    _run(bench, "w2", sizes.backlog * 5 + inserted * 2, load)


def one_transaction(bench):
    """W3."""
    rows = bench.sizes.burst

    def load(turn):
        first = 2_000_000_000 + turn * 10_000_000
        bench.source.load("insert into bench_item select * from bench_rows(%s, %s)", (first, first + rows - 1))

    _run(bench, "w3", rows, load)


def _run(bench, name, changes, load):
    bench.copy_untimed()
    source = bench.source
    for turn in bench.turns():
        again = 0
        if bench.product:
            bench.product.be_level()
            bench.alone.archive_level()
            again = max(source.settle(bench.product.slots), source.settle(bench.alone.slots))
            bench.product.stop()
            bench.alone.stop()
        # Fresh slots: nothing older is read again.
        for slot in (RECV_SLOT, SCRIPT_SLOT):
            source.make_slot(slot)
        begin = source.value("select pg_current_wal_insert_lsn()")
        load(turn)
        work = _Work(bench, name, changes, *source.mark())
        wal = source.value("select pg_wal_lsn_diff(%s, %s)::bigint", (work.end, begin))
        told = f"{changes} changes, {wal / 1e6:.0f} MB WAL, rindle's slot reads {again} B before it"
        bench.say(f"{name} run {bench.run}: {told}")
        for consumer in bench.in_turn([work.recv, work.script, bench.alone and work.archive, bench.product and work.rindle]):
            consumer()
        source.drop_slots("bench\\_%")


class _Work:
    """One backlog. `before` lies before the commit of its mark, `end` at or behind it."""

    def __init__(self, bench, name, changes, mark, before, end):
        self.bench, self.name, self.changes = bench, name, changes
        self.mark, self.before, self.end = mark, before, end

    def recv(self):
        source = self.bench.source
        noise, ended = self.bench.noise(), source.cpu.ended()
        stream = ["--slot", RECV_SLOT, "--start", "--no-loop", "--endpos", self.end, "-f", "/dev/null"]
        options = ["-o", "proto_version=1", "-o", f"publication_names={PUBLICATION}"]
        log = self.bench.folder / "recv.log"
        program = source.run("pg_recvlogical", "pg_recvlogical", "-d", "postgres", *stream, *options, log=log)
        wall = program.finish(900) - program.started
        until = time.monotonic() + 30
        while source.walsender():
            if time.monotonic() > until:
                raise Failed("the walsender of pg_recvlogical does not end")
            time.sleep(0.01)
        time.sleep(0.1)  # until the server has taken note of its end, CPU and all
        measured = {"wall_s": wall, "per_s": self.changes / wall, "cpu_s": program.cpu(), "rss_mb": program.peak_mb()}
        measured |= {"walsender_cpu_s": source.cpu.ended() - ended, "other_cpu_s": noise.so_far()}
        self.bench.add(self.name, "recv", measured)

    def script(self):
        baseline, noise = self.bench.baseline, self.bench.noise()
        baseline.start(SCRIPT_SLOT)
        program = baseline.program
        level = baseline.wait("baseline script level", lambda: baseline.mirror.newest() == self.mark)
        wall = level - program.started
        measured = {"wall_s": wall, "per_s": self.changes / wall, "cpu_s": program.cpu(), "rss_mb": program.peak_mb()}
        measured |= {"walsender_cpu_s": self._walsender_cpu(), "other_cpu_s": noise.so_far()}
        baseline.stop()
        if self.bench.equal(self.name, "script", baseline.db):
            self.bench.add(self.name, "script", measured)

    def archive(self):
        """The gateway alone, until the archive holds the backlog."""
        product, noise = self.bench.alone, self.bench.noise()
        product.start_gateway()
        wall = product.wait(f"{self.name} archived", lambda: product.archived_past(self.before)) - product.gateway.started
        measured = {"wall_s": wall, "per_s": self.changes / wall, "gateway_cpu_s": product.gateway.cpu()}
        measured |= {"walsender_cpu_s": self._walsender_cpu(), "other_cpu_s": noise.so_far()}
        self.bench.add(self.name, "archive", measured | {"gateway_rss_mb": product.gateway.peak_mb()})
        product.stop()

    def rindle(self):
        """Gateway and follower, until the mirror holds the backlog."""
        product, noise = self.bench.product, self.bench.noise()
        product.start()
        gateway, follower = product.gateway, product.follower
        level = product.wait(f"{self.name} mirrored", lambda: product.mirror.newest() == self.mark)
        wall = level - gateway.started
        measured = {"wall_s": wall, "per_s": self.changes / wall}
        measured |= {"gateway_cpu_s": gateway.cpu(), "follower_cpu_s": follower.cpu()}
        measured |= {"walsender_cpu_s": self._walsender_cpu(), "other_cpu_s": noise.so_far()}
        measured |= {"gateway_rss_mb": gateway.peak_mb(), "follower_rss_mb": follower.peak_mb()}
        if self.bench.equal(self.name, "rindle", product.db):
            self.bench.add(self.name, "mirror", measured)
        product.stop()

    def _walsender_cpu(self):
        source = self.bench.source
        return source.cpu.of(source.walsender())
