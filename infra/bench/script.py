"""The baseline script as a consumer that is started, waited for and stopped like the product."""

import sys
from pathlib import Path

from mirror import Mirror
from processes import Program, wait_for
from source import PUBLICATION

HERE = Path(__file__).parent
GROUP_MS = 50


class Baseline:
    def __init__(self, source, folder):
        folder.mkdir()
        self.source, self.folder, self.db = source, folder, folder / "mirror.db"
        self.mirror = Mirror(self.db)
        self.program = None

    def forget_mirror(self):
        self.mirror.close()
        for file in self.folder.glob("mirror.db*"):
            file.unlink()

    def start_copy(self):
        self.program = self._start("copy")

    def start(self, slot):
        args = ["--slot", slot, "--publication", PUBLICATION, "--group-ms", GROUP_MS]
        self.program = self._start("follow", *args)

    def _start(self, work, *args):
        argv = [sys.executable, HERE / "baseline.py", work, "--dsn", self.source.dsn, "--db", self.db, *args]
        return Program(f"baseline {work}", argv, self.folder / "log")

    def wait(self, what, reached):
        """Polls until `reached`; gives the moment."""
        return wait_for(what, reached, [self.program])

    def be_level(self):
        mark, _, _ = self.source.mark()
        self.wait("baseline script level", lambda: self.mirror.newest() == mark)

    def stop(self):
        if self.program:
            self.program.stop()
        self.program = None
