"""What the workloads share: the source, the consumers, the sizes, the measurements."""

import json
import sys
import time

from mirror import difference
from processes import Failed, Noise
from product import Product
from script import Baseline
from source import Source

UPDATED_ROWS = 800_000  # those that the small transactions of W2 and W4 spread over


class Bench:
    def __init__(self, sizes, folder, bins):
        self.sizes, self.folder = sizes, folder
        self.deleted = sizes.runs * (sizes.backlog // 5)  # ids from 1 on that W2 deletes
        self.span = min(UPDATED_ROWS, sizes.rows - self.deleted)
        if self.span < 1000:
            raise Failed(f"{sizes.rows} rows are too few: W2 deletes {self.deleted} of them")
        self.update_from = sizes.rows - self.span + 1
        self.measured = {}  # workload -> column -> list of measurements
        self.problems = []
        self.run = 0  # the number of the present run, from 1 on
        self._bins = bins
        self._begun = time.monotonic()
        self._copied = self._alone_copied = False

    def open(self):
        self.say(f"Postgres and {self.sizes.rows} rows")
        self.source = Source(self.folder / "postgres")
        self.source.fill(self.sizes.rows)
        self.baseline = Baseline(self.source, self.folder / "baseline")
        self.product = self.alone = None
        if self._bins:
            self.product = Product(self._bins, self.source, self.folder / "rindle", "bench")
            # A gateway without followers, as pg_recvlogical feeds no mirror either.
            self.alone = Product(self._bins, self.source, self.folder / "alone", "alone")
        else:
            self.source.publish()

    def say(self, text):
        print(f"bench {time.monotonic() - self._begun:6.0f} s  {text}", file=sys.stderr, flush=True)

    def add(self, workload, column, measurement):
        measurement = {"run": self.run, **measurement}
        self.measured.setdefault(workload, {}).setdefault(column, []).append(measurement)
        told = {key: round(value, 4) for key, value in measurement.items()}
        self.say(f"{workload} {column}: {json.dumps(told)}")

    def equal(self, workload, column, db):
        """Compares a mirror with the source; one that is wrong is told at the end, and its run is not counted."""
        found = difference(self.source, db)
        if found:
            self.problems.append(f"{workload}, {column}: the mirror is not equal to the source: {found}")
            self.say(self.problems[-1])
        return not found

    def noise(self):
        return Noise(self.source.cpu)

    def turns(self):
        """The numbers of the runs from 0 on."""
        for turn in range(self.sizes.runs):
            self.run = turn + 1
            yield turn

    def in_turn(self, consumers):
        """The consumers, each run beginning with another one, so that none always comes first."""
        consumers = [consumer for consumer in consumers if consumer]
        first = self.run % len(consumers)
        return consumers[first:] + consumers[:first]

    def copied(self):
        """Both mirrors hold the first copy from now on."""
        self._copied = True

    def copy_untimed(self):
        """What W1 did not copy."""
        if self.alone and not self._alone_copied:
            self.say("first copy of the gateway without followers, not measured")
            self.alone.mint()
            self.alone.archive_level()
            self.alone.stop()
            self._alone_copied = True
        if self._copied:
            return
        self.say("first copy, not measured")
        self.baseline.start_copy()
        self.baseline.program.finish(900)
        if self.product:
            self.product.mint()
            self.product.be_level()
            self.product.stop()
        self.copied()
