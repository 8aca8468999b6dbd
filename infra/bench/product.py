"""The product as its user runs it: prepared and minted by `rindle`, a gateway, a follower, files as configuration."""

import http.client
import json
import shutil
import subprocess
from pathlib import Path

from mirror import Mirror
from processes import Failed, Program, wait_for
from source import free_port, lsn

ROOT = Path(__file__).parent.parent.parent


def build():
    """Release binaries; gives their folder."""
    packages = ["-p", "rindle-gateway", "-p", "rindle-follower", "-p", "rindle-cli"]
    command = ["cargo", "build", "--release", "--locked", "--bins", *packages]
    subprocess.run(command, cwd=ROOT, check=True, stdout=2)
    metadata = ["cargo", "metadata", "--format-version", "1", "--no-deps", "--offline"]
    answer = subprocess.run(metadata, cwd=ROOT, check=True, capture_output=True)
    return Path(json.loads(answer.stdout)["target_directory"]) / "release"


class Product:
    """One generation at a time of one source name: its archive, gateway and follower."""

    def __init__(self, bins, source, folder, name):
        folder.mkdir()
        self.bins, self.source, self.folder, self.name = bins, source, folder, name
        self.slots = f"rindle\\_{name}\\_%"
        self.archive, self.db = folder / "archive", folder / "mirror" / "mirror.db"
        self.gateway = self.follower = None
        self.mirror = Mirror(self.db)
        self.grpc, self.http = free_port(), free_port()
        self._http = None
        postgres = ["--pg-host", "127.0.0.1", "--pg-port", source.port, "--pg-user", "postgres"]
        self._pg = [*postgres, "--pg-database", "postgres", "--pg-sslmode", "disable", "--source", name]
        self._rindle("prepare", "--tables", "public.bench_item,public.bench_mark")

    def _rindle(self, command, *args):
        argv = [self.bins / "rindle", "pg", command, *self._pg, *args]
        program = Program(f"rindle pg {command}", argv, self.folder / "rindle.log")
        return program.finish(120) - program.started

    def mint(self):
        """A new generation with an empty archive and no mirror; what was before is gone. Gives the seconds it took."""
        self.stop()
        self.source.drop_slots(self.slots)
        self.forget_mirror()
        for folder in (self.archive, self.folder / "gateway"):
            shutil.rmtree(folder, ignore_errors=True)
        self.archive.mkdir()
        return self._rindle("mint", "--store", "filesystem", "--path", self.archive)

    def forget_mirror(self):
        self.mirror.close()
        shutil.rmtree(self.db.parent, ignore_errors=True)
        self.db.parent.mkdir()

    def start_gateway(self):
        postgres = {"host": "127.0.0.1", "port": self.source.port, "user": "postgres"}
        config = {
            "name": self.name,
            "dataDir": str(self.folder / "gateway"),
            "grpcPort": self.grpc,
            "httpPort": self.http,
            "postgres": {**postgres, "database": "postgres", "sslMode": "disable"},
            "backup": {"type": "filesystem", "path": str(self.archive)},
        }
        self.gateway = self._start("rindle-pg-gateway", "gateway", config)

    def start_follower(self):
        backup = {"type": "filesystem", "path": str(self.archive)}
        url = f"http://127.0.0.1:{self.grpc}"
        config = {
            "db": str(self.db),
            "httpPort": 0,
            "wsPort": 0,
            "sources": [{"kind": "pg-gateway", "name": self.name, "url": url, "backup": backup}],
        }
        self.follower = self._start("rindled", "follower", config)

    def _start(self, binary, name, config):
        file = self.folder / f"{name}.json"
        file.write_text(json.dumps(config), encoding="utf-8")
        argv = [self.bins / binary, "--config", file]
        return Program(name, argv, self.folder / f"{name}.log", out=self.folder / f"{name}.out")

    def start(self):
        self.start_gateway()
        self.start_follower()

    def stop(self):
        for program in (self.follower, self.gateway):
            if program:
                program.stop()
        if self._http:
            self._http.close()
        self.gateway = self.follower = self._http = None

    def status(self):
        """What the gateway says of itself; None while it does not listen yet."""
        try:
            if self._http is None:
                self._http = http.client.HTTPConnection("127.0.0.1", self.http, timeout=10)
            self._http.request("GET", "/status")
            return json.loads(self._http.getresponse().read())
        except (OSError, http.client.HTTPException):
            self._http.close()
            self._http = None
            self.gateway.must_run()
            return None

    def streams(self):
        """True once the archive holds the whole first copy and the stream runs."""
        status = self._sound_status()
        return bool(status and status["ready"] and status["phase"] == "streaming")

    def archived_past(self, position):
        """True once the archive holds a commit that lies behind this position."""
        status = self._sound_status()
        return bool(status and lsn(status["archived"]) > position)

    def _sound_status(self):
        status = self.status()
        if status and status["phase"] == "halted":
            raise Failed(f"the gateway halted: {status.get('reason')}")
        return status

    def wait(self, what, reached):
        """Polls until `reached`; gives the moment."""
        return wait_for(what, reached, [program for program in (self.gateway, self.follower) if program])

    def archive_level(self):
        """Runs the gateway alone until everything of the source is in the archive. Not measured."""
        if not self.gateway:
            self.start_gateway()
        _, before, _ = self.source.mark()
        self.wait("rindle archived", lambda: self.archived_past(before))

    def be_level(self):
        """Runs until everything of the source is in the mirror and in the archive. Not measured."""
        if not self.gateway:
            self.start()
        mark, before, _ = self.source.mark()
        self.wait("rindle level", lambda: self.mirror.newest() == mark and self.archived_past(before))
