"""The same study on NVFlare, with its own provisioning: the same bits, and a stranger's job gets nothing.

Without nvflare (``pip install 'fedveil[nvflare]'``, or ``make nvflare``) these tests are skipped.
"""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
from flower_trials import GUARD, contents, released, sessions, simulated, text, trial_records, until

from fedveil.certificate.certify import certify
from fedveil.federation.aggregator.consortium import Held
from fedveil.federation.deploy.check import check_place
from fedveil.federation.nvflare.local import FlareNetwork, local_flare
from fedveil.jobs.remote import federated
from fedveil.planning.study import read_study_without_data

pytest.importorskip("nvflare", reason="NVFlare is not installed; pip install 'fedveil[nvflare]' or make nvflare")

NOBODY = 65534
AS_NOBODY = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
STRANGER = """
import json, socket
from pathlib import Path
from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable, make_reply

def tried(act):
    try:
        return repr(act())
    except OSError as error:
        return type(error).__name__

def knock(door, words):
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(60.0)
        connection.connect(door)
        frame = (1).to_bytes(4, "big") + (8).to_bytes(4, "big") + b"envelope" + len(words).to_bytes(8, "big") + words
        connection.sendall(len(frame).to_bytes(8, "big") + frame)
        return connection.recv(2**16)

class Taker(Executor):
    def handle_event(self, event_type, fl_ctx):
        if event_type == EventType.START_RUN:
            wanted = json.loads(WANTED)
            loot = {path: tried(Path(path).read_bytes) for path in wanted["files"]}
            loot["guard"] = tried(lambda: knock(wanted["door"], bytes.fromhex(wanted["envelope"])))
            loot["writes"] = tried(lambda: Path(wanted["files"][0]).write_bytes(b""))
            Path(wanted["loot"]).write_text(json.dumps(loot))
    def execute(self, task_name, shareable, fl_ctx, abort_signal):
        return make_reply("OK")

class Quiet(Controller):
    def start_controller(self, fl_ctx): pass
    def stop_controller(self, fl_ctx): pass
    def process_result_of_unknown_task(self, *args, **kwargs): pass
    def control_flow(self, abort_signal, fl_ctx):
        while not abort_signal.triggered and not Path(json.loads(WANTED)["loot"]).exists():
            __import__("time").sleep(0.2)
"""


@pytest.fixture(scope="module")
def network() -> Iterator[FlareNetwork]:
    """Three sites; the folder is open to all users, as /etc and /run are, so that files must protect themselves."""
    folder = Path(tempfile.mkdtemp(prefix="fedveil-flare-"))
    folder.chmod(0o755)
    try:
        with local_flare(trial_records(), 3, folder / "files", folder / "sites", datetime.now(UTC), GUARD) as found:
            found.folder.chmod(0o755)
            started = found.processes.started
            yield found
        assert not [one.name for one in started if one.alive]
        assert not sessions({one.process.pid for one in started})
    finally:
        shutil.rmtree(folder)


def test_a_study_gives_the_same_bits_certificate_and_ledgers(network: FlareNetwork, tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text('[trust]\nserver = "secure-aggregation"\n'.join(text().split("[trust]\n")))
    study, out = read_study_without_data(tmp_path / "study.toml"), tmp_path / "out"
    out.mkdir()
    with network.carrier() as carrier:
        federated(study, out, network.deployment, carrier, Held())
    assert released(out).tobytes() == simulated(out, trial_records())[0].tobytes()
    found = certify(out, "0")
    assert json.loads((out / "certificate.json").read_text())["plan"] == found.plan.hash
    for site in network.deployment.cards:
        folder = network.records / site / "runs" / found.run
        own = certify(folder, "0")
        assert own.plan == found.plan
        assert (folder / "model.npz").read_bytes() == (out / "model.npz").read_bytes()
        with closing(sqlite3.connect(network.records / site / "ledger.sqlite")) as books:
            assert books.execute("SELECT count(*) FROM entries WHERE kind = 'charge'").fetchone() == (1,)
    rows = {row.what: row for row in check_place(network.files, None, datetime.now(UTC))}
    assert all(row.fine for row in rows.values()), rows
    carried = b"".join(contents(network.folder / "poc").values())  # whatever NVFlare has written
    assert (out / "model.npz").read_bytes() not in carried


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start NVFlare's client as another user")
def test_a_strangers_job_reaches_neither_data_nor_keys(network: FlareNetwork) -> None:
    """The submitter may bring code, and it runs at the site, as NVFlare's user; the guard's files and answers stay."""
    where = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    check = [*AS_NOBODY, "sh", "-c", "exec python3 -c 'import fedveil, nvflare, numpy'"]
    if subprocess.run(check, env={**os.environ, **where}, capture_output=True).returncode != 0:
        pytest.skip("another user can start no Python that finds this installation")
    site = "site-3"
    network.nodes[site].stop()
    kit = network.kit(site)
    for path in [kit, *kit.rglob("*")]:
        os.chown(path, NOBODY, NOBODY)
    network.door(site).chmod(0o666)  # as for the group that NVFlare's user is in
    place, loot = network.place(site), network.folder / "loot"
    loot.mkdir()
    os.chown(loot, NOBODY, NOBODY)
    for folder in (network.files, network.files / "sites", place, network.records, network.records / site):
        folder.chmod(0o755)
    ledger = network.records / site / "ledger.sqlite"
    files = [place / "identity.key", place / "data.npz", ledger, network.deployment.folder / "identity.key"]
    before = {path: path.read_bytes() for path in files}
    wanted = {"files": [str(path) for path in files], "door": str(network.door(site)), "loot": str(loot / "taken")}
    job = network.folder / "stranger"
    app = {
        "config/config_fed_server.json": {"format_version": 2, "workflows": [{"id": "w", "path": "stranger.Quiet"}]},
        "config/config_fed_client.json": {
            "format_version": 2,
            "executors": [{"tasks": ["*"], "executor": {"path": "stranger.Taker"}}],
        },
    }
    for name, content in app.items():
        (job / "app" / name).parent.mkdir(parents=True, exist_ok=True)
        (job / "app" / name).write_text(json.dumps(content))
    (job / "app" / "custom").mkdir()
    code = STRANGER.replace("WANTED", repr(json.dumps({**wanted, "envelope": b"let me in".hex()})))
    (job / "app" / "custom" / "stranger.py").write_text(code)
    meta = {"name": "harmless", "min_clients": 1, "resource_spec": {}, "deploy_map": {"app": ["server", site]}}
    (job / "meta.json").write_text(json.dumps(meta))
    words = [*AS_NOBODY, str(kit / "startup" / "sub_start.sh"), "--once"]
    network.nodes[site] = network.processes.start(f"node-{site}-apart", words, where)
    network.nodes[site].wait_for("Successfully registered", 120.0)
    network.submit(job)
    until((loot / "taken").exists, pause=0.2)
    until(lambda: (loot / "taken").read_text(), pause=0.1)
    taken = json.loads((loot / "taken").read_text())
    assert taken == {**dict.fromkeys(map(str, files), "PermissionError"), "guard": "b''", "writes": "PermissionError"}
    assert {path: path.read_bytes() for path in files} == before
    assert network.guards[site].alive
