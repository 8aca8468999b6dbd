"""Runs the benchmark; infra/bench.sh makes the machine ready and calls it."""

import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import backlog
import first_copy
import product
import report
import source
import steady
from arguments import arguments
from bench import Bench
from processes import Failed, stop_all

WORKLOADS = {
    "w1": first_copy.run,
    "w2": backlog.small_transactions,
    "w3": backlog.one_transaction,
    "w4": steady.run,
}


def machine():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        models = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    command = ["git", "describe", "--always", "--dirty"]
    commit = subprocess.run(command, cwd=product.ROOT, capture_output=True, text=True, check=False).stdout.strip()
    return {
        "commit": commit or "unknown",
        "cpus": len(models) or os.cpu_count(),
        "cpu": models[0] if models else platform.machine(),
        "memory": f"{memory:.0f} GiB",
        "kernel": platform.release(),
        "postgres": source.pg_version(),
        "python": platform.python_version(),
    }


def main():
    args = arguments()
    bins = None
    if not args.yardsticks:
        bins = args.bin_dir.resolve() if args.bin_dir else product.build()
    # SIGTERM ends it the way Ctrl-C does: everything that was started goes with it.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    folder = Path(tempfile.mkdtemp(prefix="rindle-bench-"))
    folder.chmod(0o755)  # user postgres has its part in it
    bench = None
    try:
        bench = Bench(args, folder, bins)
        bench.open()
        for name in args.only:
            bench.say(f"{name}, {args.runs} runs")
            WORKLOADS[name](bench)
        failed = None
    except Failed as error:
        failed = str(error)
    except KeyboardInterrupt:
        return 130
    finally:
        stop_all()
        if args.keep:
            print(f"kept: {folder}", file=sys.stderr)
        else:
            shutil.rmtree(folder, ignore_errors=True)
    if failed:
        print(f"bench: {failed}", file=sys.stderr)
        if not (bench and bench.measured):
            return 1
        bench.problems.append(failed.splitlines()[0])
    sizes = {name: getattr(args, name) for name in ("runs", "rows", "backlog", "burst", "rate", "seconds")}
    result = report.document(bench, machine(), sizes)
    print(json.dumps(result, indent=2) if args.json else report.text(result))
    return 1 if result["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
