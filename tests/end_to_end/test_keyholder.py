"""The key holder's own process, as its operator starts it: files of a deployment, its socket, a plan by its hash."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fedveil.federation.agreements import parameters_of, public_of
from fedveil.federation.carrying.guard_door import hand_to_guard
from fedveil.federation.deploy.files import read_deployment
from fedveil.federation.deploy.own_keys import read_holder
from fedveil.planning.plan import write_plan
from fedveil.sums.homomorphic.library import has_tenseal
from fedveil.sums.homomorphic.roles import Encryptor
from fedveil.wire.content import Content
from fedveil.wire.envelope import Head, seal, unseal
from unit.federations import made_up, study
from unit.plans import some_records

pytestmark = pytest.mark.skipif(not has_tenseal(), reason="TenSEAL is not installed (fedveil[he])")
RUN = "a" * 32


def test_a_holder_shows_a_plan_and_signs_a_key_for_the_one_it_has_accepted(tmp_path: Path) -> None:
    fedveil = [sys.executable, "-m", "fedveil"]
    made = ["--sites", "north,south", "--key-holder", "notary", "--host", "127.0.0.1"]
    subprocess.run([*fedveil, "deploy", "init", str(tmp_path / "d"), *made], check=True, capture_output=True)
    center, place = read_deployment(tmp_path / "d"), tmp_path / "d" / "key-holder"
    trust = {"server": "homomorphic", "key_holder": "third-party", "dropouts": 2}
    wanted, other = (
        study(trust={**trust, "colluders": count}).planned(some_records(60, clients=9).shape).plan for count in (1, 2)
    )
    words = ["keyholder", "--key", str(place / "identity.key"), "--records", str(tmp_path / "records")]
    process = subprocess.Popen(
        [*fedveil, *words, "--accept", wanted.hash], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )

    def ask(kind: str, run: str, number: int, content: Content) -> tuple[str, Content]:
        assert center.holder is not None
        head = Head(run=run, sender="aggregator", receiver="notary", kind=kind, round=0, number=number)
        envelope = seal(head, content.write(), center.identity, center.holder, made_up(f"{run} {number}", 32))
        opened = unseal(hand_to_guard(place / "guard.sock", envelope), center.identity, center.holder)
        return opened.head.kind, Content.read(opened.body)

    try:
        assert process.stderr is not None
        assert process.stderr.readline() == "notary: listening for aggregator\n"  # or nothing, if it has stopped
        proposal, changed = (
            Content(values={"plan": plan.hash}, blocks={"plan": write_plan(plan).encode()}) for plan in (wanted, other)
        )
        assert ask("propose", "b" * 32, 1, changed)[1].values == {"code": "not-accepted"}
        assert ask("propose", RUN, 1, proposal)[0] == "accepted"
        kind, said = ask("make-key", RUN, 2, Content())
        assert kind == "made"
        known = read_holder(tmp_path / "d" / "sites" / "north" / "identity.key")
        assert known is not None
        Encryptor.open(public_of(said.blocks["key"], known, RUN, wanted.hash), parameters_of(wanted))
    finally:
        process.send_signal(signal.SIGTERM)
        out, shown = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "")
    for plan in (wanted, other):
        assert f"accept it with: --accept {plan.hash}" in shown
    assert "a third party holds the key" in shown
