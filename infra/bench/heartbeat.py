"""Writes the mark every 20 ms, each in a commit of its own, and tells when each COMMIT returned.

    heartbeat.py --dsn DSN --first N --seconds S      prints lines "n nanoseconds" (monotonic clock) at its end
"""

import argparse
import time

import psycopg2

EVERY_S = 0.02


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--dsn", required=True)
    parser.add_argument("--first", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    args = parser.parse_args()
    source = psycopg2.connect(args.dsn)
    source.autocommit = True
    cursor = source.cursor()
    beats = []
    begun = time.monotonic()
    due, number = begun, args.first
    while due - begun < args.seconds:
        time.sleep(max(0.0, due - time.monotonic()))
        cursor.execute("update bench_mark set n = %s where id = 1", (number,))
        beats.append(f"{number} {time.monotonic_ns()}")
        number += 1
        # A commit that took long is not made up for by a burst.
        due = max(due + EVERY_S, time.monotonic())
    print("\n".join(beats))


if __name__ == "__main__":
    main()
