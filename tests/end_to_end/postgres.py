"""A PostgreSQL server of its own for a test: made, started, and taken away again."""

import os
import pwd
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

USER = "postgres"  # who runs the server where the tests run as root, which PostgreSQL refuses


@dataclass(frozen=True)
class Server:
    """Where it listens, and the password of its one user."""

    port: int
    password: str

    def address(self, database: str = "postgres", *, password: bool = True) -> str:
        own = f":{self.password}" if password else ""
        return f"postgresql://{USER}{own}@127.0.0.1:{self.port}/{database}"


def programs() -> Path | None:
    """The folder of initdb and postgres; None where there is none."""
    found = shutil.which("initdb")
    places = [Path(found).parent] if found else sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((place for place in places if (place / "initdb").exists()), None)


def why_not() -> str | None:
    """The reason why no server can be started here; None if one can."""
    if programs() is None:
        return "PostgreSQL's programs (initdb, postgres) are not installed"
    if os.geteuid() != 0:
        return None
    try:
        pwd.getpwnam(USER)
    except KeyError:
        return "PostgreSQL does not run as root, and there is no user postgres"
    return None if shutil.which("setpriv") else "PostgreSQL does not run as root, and setpriv is not installed"


@contextmanager
def server() -> Iterator[Server]:
    """Start a server on a free port of this machine."""
    bins = programs()
    assert bins is not None
    before = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups"] if os.geteuid() == 0 else []
    folder = Path(tempfile.mkdtemp(prefix="fedveil-pg-"))
    password, port = secrets.token_hex(12), _free_port()
    (folder / "password").write_text(password)
    if before:
        own = pwd.getpwnam(USER)
        for path in (folder, folder / "password"):
            os.chown(path, own.pw_uid, own.pw_gid)
    made = ["-D", str(folder / "data"), "-U", USER, "-A", "scram-sha-256", "--no-sync", "-E", "UTF8"]
    subprocess.run(
        [*before, str(bins / "initdb"), *made, "--pwfile", str(folder / "password")], check=True, capture_output=True
    )
    options = ["-D", str(folder / "data"), "-h", "127.0.0.1", "-p", str(port), "-k", str(folder), "-F"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([*before, str(bins / "postgres"), *options], stdout=log, stderr=log)
        try:
            _await(folder / "data" / "postmaster.pid", process)
            yield Server(port, password)
        finally:
            process.terminate()
            process.wait(30)
            shutil.rmtree(folder, ignore_errors=True)


def _free_port() -> int:
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        return int(door.getsockname()[1])


def _await(state: Path, process: "subprocess.Popen[bytes]") -> None:
    """Wait until the server says that it is ready, in its own file: it listens a while before it answers."""
    until = time.monotonic() + 120
    while time.monotonic() < until:
        assert process.poll() is None, "PostgreSQL did not start"
        if state.exists() and "ready" in state.read_text().split():
            return
        time.sleep(0.05)
    raise AssertionError("PostgreSQL was not ready within two minutes")
