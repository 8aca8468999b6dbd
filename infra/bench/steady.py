"""W4: how long after its COMMIT returned a change shows in the mirror, under a steady load. A heartbeat is committed
every 20 ms; the mirror is read every millisecond on a connection of its own."""

import re
import sys
import time
from pathlib import Path

from processes import Failed, Program

HERE = Path(__file__).parent
NAME = "w4"
SLOT = "bench_script"
CLIENTS = 4
LOAD_FIRST_S = 2  # before the heartbeats begin
LOAD_LAST_S = 2  # after they end
SEEN_WITHIN_S = 30


def run(bench):
    bench.copy_untimed()
    # The script's slot stays over all runs: what is committed in the product's turn is read in its own.
    bench.source.make_slot(SLOT)
    for _ in bench.turns():
        for consumer in bench.in_turn([_script, bench.product and _rindle]):
            consumer(bench)
    bench.source.drop_slots(SLOT)


def _script(bench):
    baseline = bench.baseline
    baseline.start(SLOT)
    baseline.be_level()
    program = baseline.program
    measured = _measure(bench, baseline.mirror, {"cpu_per_s": program})
    measured["rss_mb"] = program.peak_mb()
    baseline.be_level()
    baseline.stop()
    if bench.equal(NAME, "script", baseline.db):
        bench.add(NAME, "script", measured)


def _rindle(bench):
    product = bench.product
    product.be_level()
    gateway, follower = product.gateway, product.follower
    measured = _measure(bench, product.mirror, {"gateway_cpu_per_s": gateway, "follower_cpu_per_s": follower})
    measured["cpu_per_s"] = measured["gateway_cpu_per_s"] + measured["follower_cpu_per_s"]
    measured |= {"gateway_rss_mb": gateway.peak_mb(), "follower_rss_mb": follower.peak_mb()}
    product.be_level()
    if bench.equal(NAME, "rindle", product.db):
        bench.add(NAME, "rindle", measured)
    product.stop()


def _measure(bench, mirror, programs):
    """Load, heartbeats and looks; `programs` names what uses CPU."""
    source, seconds = bench.source, bench.sizes.seconds
    load = _start_load(bench, LOAD_FIRST_S + seconds + LOAD_LAST_S)
    time.sleep(LOAD_FIRST_S)
    beats_file = bench.folder / "heartbeats"
    beats_file.unlink(missing_ok=True)
    heartbeat = [sys.executable, HERE / "heartbeat.py", "--dsn", source.dsn, "--first", source.marks + 1]
    noise, begun = bench.noise(), time.monotonic()
    walsender = source.walsender()
    cpu = {name: program.cpu() for name, program in programs.items()}
    sender_cpu = source.cpu.of(walsender)
    beats = Program("heartbeat", [*heartbeat, "--seconds", seconds], bench.folder / "heartbeat.log", out=beats_file)
    seen = _look(mirror, begun + seconds + 0.5)
    took = time.monotonic() - begun
    measured = {name: (program.cpu() - cpu[name]) / took for name, program in programs.items()}
    measured["walsender_cpu_per_s"] = (source.cpu.of(walsender) - sender_cpu) / took
    measured["other_cpu_per_s"] = noise.so_far() / took
    beats.finish(SEEN_WITHIN_S)
    written = [tuple(map(int, line.split())) for line in beats_file.read_text(encoding="ascii").splitlines()]
    source.marks = written[-1][0]
    if not seen or seen[-1][0] < source.marks:
        seen += _look(mirror, time.monotonic() + SEEN_WITHIN_S, source.marks)
    measured |= _percentiles(_delays(written, seen))
    load.finish(60)
    measured["transactions_per_s"] = _rate(load)
    return measured


def _start_load(bench, seconds):
    sizes, source = bench.sizes, bench.source
    ids = ["-D", f"from={bench.update_from}", "-D", f"to={bench.update_from + bench.span - 5}"]
    args = ["-n", "-c", CLIENTS, "-R", sizes.rate, "-T", seconds, *ids, "-f", HERE / "steady.pgbench", "postgres"]
    log = bench.folder / "pgbench.log"
    log.unlink(missing_ok=True)
    return source.run("pgbench", "pgbench", *args, log=log)


def _look(mirror, until, last=None):
    """Every new mark that the mirror shows, with the moment."""
    seen, newest = [], None
    while time.monotonic() < until:
        number = mirror.newest()
        if number is not None and number != newest:
            seen.append((number, time.monotonic_ns()))
            newest = number
            if last is not None and number >= last:
                break
        time.sleep(0.001)
    return seen


def _delays(written, seen):
    """Milliseconds for each heartbeat: the first look that showed it or a later one."""
    delays, at = [], 0
    for number, returned in written:
        while at < len(seen) and seen[at][0] < number:
            at += 1
        if at == len(seen):
            raise Failed(f"heartbeat {number} was not seen within {SEEN_WITHIN_S} s")
        delays.append((seen[at][1] - returned) / 1e6)
    return sorted(delays)


def _percentiles(delays):
    def share(part):
        return delays[min(len(delays) - 1, int(len(delays) * part))]

    figures = {"p50_ms": share(0.5), "p95_ms": share(0.95), "p99_ms": share(0.99), "max_ms": delays[-1]}
    return {**figures, "heartbeats": len(delays)}


def _rate(load):
    found = re.search(r"^tps = ([0-9.]+)", load.log.read_text(encoding="utf-8"), re.MULTILINE)
    if not found:
        raise Failed(f"pgbench told no rate\n{load.tail()}")
    return float(found.group(1))
