"""The flags of infra/bench.sh. Nothing else is imported, so that --help needs nothing installed."""

import argparse
from pathlib import Path

NAMES = ["w1", "w2", "w3", "w4"]


def arguments():
    parser = argparse.ArgumentParser(prog="infra/bench.sh", description="Rindle beside the yardsticks.")
    parser.add_argument("--json", action="store_true", help="one document on standard output instead of the table")
    parser.add_argument("--runs", type=int, default=5, help="runs of each workload (5)")
    parser.add_argument("--only", default=",".join(NAMES), help="workloads, w1,w2,w3,w4")
    parser.add_argument("--rows", type=int, default=3_500_000, help="W1: rows of the table (3500000)")
    parser.add_argument("--backlog", type=int, default=100_000, help="W2: transactions (100000)")
    parser.add_argument("--burst", type=int, default=500_000, help="W3: rows of the one transaction (500000)")
    parser.add_argument("--rate", type=int, default=500, help="W4: transactions a second (500)")
    parser.add_argument("--seconds", type=int, default=30, help="W4: seconds measured in each run (30)")
    parser.add_argument("--bin-dir", type=Path, help="programs that are built already (else: cargo build --release)")
    parser.add_argument("--yardsticks", action="store_true", help="only COPY, pg_recvlogical and the baseline script")
    parser.add_argument("--keep", action="store_true", help="leave the folder with files and logs")
    args = parser.parse_args()
    args.only = args.only.split(",")
    unknown = [name for name in args.only if name not in NAMES]
    if unknown:
        parser.error(f"no such workload: {', '.join(unknown)} (there are {', '.join(NAMES)})")
    if args.runs < 1 or args.backlog % 5:
        parser.error("--runs must be at least 1 and --backlog a multiple of 5")
    return args


if __name__ == "__main__":
    arguments()
