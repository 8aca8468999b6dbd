"""W1: the first copy of a table. Limit: a COPY that nobody reads."""

import os
import time

NAME = "w1"


def run(bench):
    for _ in bench.turns():
        for consumer in bench.in_turn([_copy, _script, bench.product and _rindle]):
            consumer(bench)
    bench.copied()


def _copy(bench):
    source, rows = bench.source, bench.sizes.rows
    noise, before = bench.noise(), source.cpu.total()
    command = ["-X", "-q", "-d", "postgres", "-c", "copy bench_item to stdout"]
    program = source.run("COPY", "psql", *command, log=bench.folder / "psql.log", out="/dev/null")
    wall = program.finish(900) - program.started
    time.sleep(0.1)  # until the server has taken note of the session's end, CPU and all
    measured = {"wall_s": wall, "per_s": rows / wall, "cpu_s": program.cpu(), "rss_mb": program.peak_mb()}
    bench.add(NAME, "copy", {**measured, "postgres_cpu_s": source.cpu.total() - before, "other_cpu_s": noise.so_far()})


def _script(bench):
    source, rows, baseline = bench.source, bench.sizes.rows, bench.baseline
    baseline.forget_mirror()
    mark, _, _ = source.mark()
    noise, before = bench.noise(), source.cpu.total()
    baseline.start_copy()
    begun = baseline.program.started
    wall = baseline.wait("baseline copy", lambda: baseline.mirror.holds(mark, rows)) - begun
    program = baseline.program
    measured = {"wall_s": wall, "per_s": rows / wall, "cpu_s": program.cpu(), "rss_mb": program.peak_mb()}
    measured |= {"postgres_cpu_s": source.cpu.total() - before, "other_cpu_s": noise.so_far()}
    baseline.program.finish(60)
    if bench.equal(NAME, "script", baseline.db):
        bench.add(NAME, "script", measured)


def _rindle(bench):
    source, rows, product = bench.source, bench.sizes.rows, bench.product
    mint_s = product.mint()
    mark, _, _ = source.mark()
    noise, before = bench.noise(), source.cpu.total()
    product.start_gateway()
    gateway = product.gateway
    wall = product.wait("first copy archived", product.streams) - gateway.started
    archive = {"wall_s": wall, "per_s": rows / wall, "gateway_cpu_s": gateway.cpu()}
    archive |= {"gateway_rss_mb": gateway.peak_mb()}
    archive |= {"postgres_cpu_s": source.cpu.total() - before, "other_cpu_s": noise.so_far()}
    archive |= {"mint_s": mint_s, "archive_mb": _size_mb(product.archive)}

    noise, before = bench.noise(), gateway.cpu()
    product.start_follower()
    follower = product.follower
    filled = product.wait("mirror filled", lambda: product.mirror.holds(mark, rows))
    wall = filled - follower.started
    mirror = {"wall_s": wall, "per_s": rows / wall, "from_gateway_s": filled - gateway.started}
    mirror |= {"gateway_cpu_s": gateway.cpu() - before, "follower_cpu_s": follower.cpu()}
    mirror |= {"follower_rss_mb": follower.peak_mb(), "other_cpu_s": noise.so_far()}
    if bench.equal(NAME, "rindle", product.db):
        bench.add(NAME, "archive", archive)
        bench.add(NAME, "mirror", mirror)
    product.stop()


def _size_mb(folder):
    total = 0
    for place, _, files in os.walk(folder):
        total += sum(os.path.getsize(os.path.join(place, file)) for file in files)
    return total / 1e6
