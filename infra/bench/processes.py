"""Programs that the benchmark starts, and what they and the rest of the machine use.

Everything is started so that the kernel ends it when the benchmark itself dies. CPU is user and system time as
/proc counts it (in steps of 10 ms); peak memory is VmHWM, the high-water mark of the resident set.
"""

import os
import signal
import subprocess
import sys
import time

TICKS = os.sysconf("SC_CLK_TCK")
RUNNING = set()


class Failed(Exception):
    """Something did not work; the text says what, with the end of the log."""


class Program:
    """One program with its log. `out` is a file for its standard output; without it, it goes to the log too."""

    def __init__(self, name, argv, log, out=None, as_user=None, stop_with=signal.SIGTERM):
        self.name, self.log, self._stop_with = name, log, stop_with
        self.status = None
        self._cpu_at_end = 0.0
        self._peak_mb = 0.0
        user = ["--reuid", as_user, "--regid", as_user, "--clear-groups"] if as_user else []
        argv = ["setpriv", "--pdeathsig", stop_with.name[3:], *user, *map(str, argv)]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
        with open(log, "ab") as errors, open(out or log, "ab") as output:
            self.started = time.monotonic()
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                cwd="/" if as_user else None,
                env=environment,
                start_new_session=True,
            )
        self.pid = self._process.pid
        RUNNING.add(self)

    def ended(self):
        """True once it ended; its status is known then."""
        if self.status is not None:
            return True
        self.look()
        pid, status, usage = os.wait4(self.pid, os.WNOHANG)
        if pid == 0:
            return False
        self.status = self._process.returncode = os.waitstatus_to_exitcode(status)
        self._cpu_at_end = usage.ru_utime + usage.ru_stime
        RUNNING.discard(self)
        return True

    def must_run(self):
        if self.ended():
            raise Failed(f"{self.name} ended with status {self.status}\n{self.tail()}")

    def finish(self, within):
        """Waits for its end, which must be a good one; gives the moment."""
        until = time.monotonic() + within
        while not self.ended():
            if time.monotonic() > until:
                raise Failed(f"{self.name} still runs after {within} s\n{self.tail()}")
            time.sleep(0.001)
        moment = time.monotonic()
        if self.status != 0:
            raise Failed(f"{self.name} ended with status {self.status}\n{self.tail()}")
        return moment

    def stop(self, within=20):
        if self.ended():
            return
        os.kill(self.pid, self._stop_with)
        until = time.monotonic() + within
        while not self.ended():
            if time.monotonic() > until:
                print(f"{self.name} was killed: it did not stop within {within} s", file=sys.stderr)
                os.kill(self.pid, signal.SIGKILL)
                until = time.monotonic() + within
            time.sleep(0.005)

    def cpu(self):
        """CPU seconds so far."""
        if self.ended():
            return self._cpu_at_end
        fields = _stat(self.pid)
        return fields[0] + fields[1] if fields else self._cpu_at_end

    def peak_mb(self):
        self.look()
        return self._peak_mb

    def look(self):
        """Reads the peak of memory while it can be read."""
        try:
            with open(f"/proc/{self.pid}/status", encoding="ascii", errors="replace") as file:
                for line in file:
                    if line.startswith("VmHWM:"):
                        self._peak_mb = max(self._peak_mb, int(line.split()[1]) / 1024)
                        return
        except (FileNotFoundError, ProcessLookupError):
            pass

    def tail(self, lines=15):
        try:
            with open(self.log, encoding="utf-8", errors="replace") as file:
                return "    " + "    ".join(file.readlines()[-lines:])
        except FileNotFoundError:
            return ""


def wait_for(what, reached, programs, every=0.005, within=900):
    """Polls until `reached` while the programs live; gives the moment."""
    until = time.monotonic() + within
    turn = 0
    while not reached():
        turn += 1
        if turn % 20 == 0:
            for program in programs:
                # One that did its work and ended is looked at once more.
                if program.ended() and not reached():
                    raise Failed(f"{what}: {program.name} ended with status {program.status}\n{program.tail()}")
        if time.monotonic() > until:
            logs = "\n".join(f"{program.name}:\n{program.tail()}" for program in programs)
            raise Failed(f"{what}: not reached within {within} s\n{logs}")
        time.sleep(every)
    return time.monotonic()


def stop_all():
    # The newest first: who needs a server goes before it.
    for program in sorted(RUNNING, key=lambda program: -program.started):
        program.stop(within=10)


def _stat(pid):
    """user, system, user of ended children, system of ended children: seconds; parent's pid."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    user, system, children_user, children_system = (int(field) / TICKS for field in fields[11:15])
    return user, system, children_user, children_system, int(fields[1])


class Server:
    """CPU of a Postgres: of one process, of those that ended, of all."""

    def __init__(self, postmaster):
        self.postmaster = postmaster

    @staticmethod
    def of(pid):
        fields = _stat(pid) if pid else None
        return fields[0] + fields[1] if fields else 0.0

    def ended(self):
        """CPU seconds of all sessions that ended so far."""
        fields = _stat(self.postmaster)
        return fields[2] + fields[3] if fields else 0.0

    def total(self):
        while True:
            before = _stat(self.postmaster)
            if not before:
                return 0.0
            children = [_stat(name) for name in os.listdir("/proc") if name.isdigit()]
            running = sum(child[0] + child[1] for child in children if child and child[4] == self.postmaster)
            after = _stat(self.postmaster)
            # A session that ended meanwhile would be counted twice or not at all.
            if after and after[2:4] == before[2:4]:
                return sum(after[:4]) + running


class Noise:
    """CPU seconds that anything but this benchmark used since the value was made."""

    def __init__(self, server):
        self._server = server
        self._begun = self._now()

    def so_far(self):
        return max(0.0, self._now() - self._begun)

    def _now(self):
        with open("/proc/stat", encoding="ascii") as file:
            user, nice, system, _idle, _wait, irq, softirq, steal = map(int, file.readline().split()[1:9])
        busy = (user + nice + system + irq + softirq + steal) / TICKS
        own = os.times()
        mine = own.user + own.system + own.children_user + own.children_system
        # Those that ended are in the children's time by now.
        running = [program for program in list(RUNNING) if program.pid != self._server.postmaster]
        return busy - mine - sum(program.cpu() for program in running) - self._server.total()
