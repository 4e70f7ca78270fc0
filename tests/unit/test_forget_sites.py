"""Records and sites that leave a deployment: real guards and a real aggregator go on without them, charged once."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from federations import SITES, Killed, Trial, made_up

from fedveil.certificate.certify import certify
from fedveil.core.errors import BadValue, CannotCertify
from fedveil.data.records import Records
from fedveil.engine.system import Progress, System
from fedveil.federation.aggregator.consortium import Held
from fedveil.federation.deploy.files import Deployment
from fedveil.jobs.forget import Aim, ForgetResult
from fedveil.jobs.remote import federated
from fedveil.jobs.remote_forget import SiteRequest, carry_out, open_request
from fedveil.ledger.entry import read_export
from fedveil.planning.promises import forgotten, promise
from fedveil.planning.study import read_study_without_data
from fedveil.sums.homomorphic.library import has_tenseal
from fedveil.version import __version__

STUDY = """
[model]
kind = "logistic"
radius = 5.0
[privacy]
epsilon = {epsilon}
delta = 1e-4
neighbours = "zero-out"
unit = "{unit}"
[algorithm]
kind = "hidden"
order = "public"
[trust]
server = "{server}"
{more}
"""
DATA = """
[data]
source = "{site}.csv"
target = "y"
classes = ["no", "yes"]
"""
STATED = """feature_bound = 2.0
[data.scale]
a = [-3, 3]
b = [-3, 3]
"""


def trial_in(folder: Path, more: str = STATED) -> Trial:
    draw, blank = np.random.default_rng(4), np.zeros((6, 1))
    trial = Trial(
        folder, Records(features=blank, targets=blank[:, 0], owner=np.arange(6), clients=6, bound=1.0, classes=2)
    )
    for site in SITES:
        rows = draw.normal(size=(160, 2))
        lines = [f"{a:.3f},{b:.3f},{'yes' if a - b > 0 else 'no'}" for a, b in rows]
        (folder / f"{site}.csv").write_text("\n".join(["a,b,y", *lines]) + "\n")
        (folder / f"{site}.toml").write_text(DATA.format(site=site) + more)
    trial.restart_guards()
    return trial


def deployment_of(trial: Trial) -> Deployment:
    return Deployment(
        folder=trial.folder,
        host="here",
        port=1,
        inside=1,
        relay=trial.folder,
        identity=trial.aggregator,
        cards=trial.cards,
    )


def first_run(trial: Trial, **stated: Any) -> Path:
    study = trial.folder / "study.toml"
    study.write_text(STUDY.format(**{"server": "trusted", "unit": "record", "epsilon": 2.0, "more": "", **stated}))
    out = trial.folder / "first"
    system = System(random=lambda size: made_up("first", size))
    federated(read_study_without_data(study), out, deployment_of(trial), trial.carrier, Held(), system=system)
    return out


def go_on(trial: Trial, request: SiteRequest, out: str, epsilon: float, **more: Any) -> ForgetResult:
    deployment = request.remaining(deployment_of(trial))
    design = Aim(epsilon=epsilon, rounds=4).design(request.bundle, request.leaving)
    system = System(random=lambda size: made_up(out, size))
    return carry_out(request, design, trial.folder / out, deployment, trial.carrier, system=system, **more)


def charges(folder: Path) -> int:
    return sum(entry.kind == "charge" for entry in read_export(folder / "ledger.jsonl"))


def records_at(trial: Trial, site: str, plan: str) -> list[Path]:
    return [path.parent for path in (trial.folder / site / "runs").glob("*/plan.toml") if plan in path.read_text()]


@pytest.mark.parametrize("server", ["trusted", "secure-aggregation", "homomorphic"])
def test_a_record_leaves_its_site_and_every_site_is_charged_once(tmp_path: Path, server: str) -> None:
    if server == "homomorphic" and not has_tenseal():
        pytest.skip("TenSEAL is not installed")
    trial = trial_in(tmp_path)
    request = open_request(first_run(trial, server=server), None, 1, tmp_path / "study.toml", SITES)
    with pytest.raises(BadValue, match=r"marked 1 more records as left, got 0.*\[left\] rows"):
        go_on(trial, request, "early", 1.0)
    east = tmp_path / "east.toml"
    east.write_text(east.read_text() + "[left]\nrows = [7]\n")
    trial.restart_guards()
    seen: list[int] = []

    def die(now: Progress) -> None:
        seen.append(now.round)
        raise Killed

    with pytest.raises(Killed):
        go_on(trial, request, "second", 1.0, watch=die)
    trial.restart_guards()
    result = go_on(trial, request, "second", 1.0, resume=True)
    plan = certify(tmp_path / "second", __version__).plan
    (left,) = forgotten(plan)
    assert (seen, left.units) == ([1], 1)
    assert left.new_model.epsilon <= 1.0
    assert charges(tmp_path / "second") == 1
    assert json.loads((tmp_path / "second" / "receipt.json").read_text())["plan"] == plan.hash
    for site in SITES:  # each has its own record of the request, with one charge
        (own,) = records_at(trial, site, "[forget]")
        assert charges(own) == 1
        assert certify(own, __version__).plan == plan
    assert result.certificate.plan.data == plan.lineage[0].data


def test_a_site_leaves_and_takes_no_part(tmp_path: Path) -> None:
    trial = trial_in(tmp_path)
    stated = {"server": "secure-aggregation", "unit": "client", "epsilon": 8.0, "more": 'identities = "sites"'}
    first = first_run(trial, **stated)
    request = open_request(first, "north", None, tmp_path / "study.toml", SITES)
    trial.carrier.down.add("north")
    result = go_on(trial, request, "second", 7.0)
    plan = result.certificate.plan
    assert (plan.forgetting.away, plan.data.clients, plan.data.records) == (("north",), 2, 320)
    assert result.forgotten.new_model.epsilon <= 7.0
    assert result.forgotten.every_model.epsilon == promise(plan.lineage[0], "final-model").epsilon
    assert not records_at(trial, "north", "[forget]")
    with pytest.raises(BadValue, match="forgotten already"):
        open_request(tmp_path / "second", "north", None, None, SITES)


@pytest.mark.parametrize(("server", "leaves"), [("trusted", "record"), ("secure-aggregation", "site")])
def test_columns_that_sites_learned_together_are_learned_again_without_who_left(
    tmp_path: Path, server: str, leaves: str
) -> None:
    trial = trial_in(tmp_path, "")
    first = first_run(trial, server=server, epsilon=1.0)
    site, marked = ("north", None) if leaves == "site" else (None, 1)
    request = open_request(first, site, marked, tmp_path / "study.toml", SITES)
    if leaves == "site":
        trial.carrier.down.add("north")
    else:
        east = tmp_path / "east.toml"
        east.write_text(east.read_text() + "[left]\nrows = [7]\n")
        trial.restart_guards()
    result = go_on(trial, request, "second", 0.5)
    plan = certify(tmp_path / "second", __version__).plan
    (left,) = forgotten(plan)
    assert (plan.hidden.keep, bool(plan.preparation), left.new_model.epsilon < 1e-3) == (0.0, True, True)
    assert charges(tmp_path / "second") == 1
    again, before = ((tmp_path / name / "preparation.json").read_bytes() for name in ("second", "first"))
    assert again != before
    assert len(result.model.predict({"a": [0.5, -0.5], "b": [-0.5, 0.5]})) == 2
    stays = [name for name in SITES if name != site]
    assert [charges(records_at(trial, name, "[forget]")[0]) for name in stays] == [1] * len(stays)


def test_what_cannot_go_on_across_sites_says_why(tmp_path: Path) -> None:
    trial = trial_in(tmp_path)
    first = first_run(trial)
    study = tmp_path / "study.toml"
    with pytest.raises(BadValue, match="told who leaves"):
        open_request(first, None, None, study, SITES)
    with pytest.raises(BadValue, match="one of the sites east, north, south"):
        open_request(first, "west", None, study, SITES)
    # a whole site of a run that protected records: its records together, for which no noise is small enough to go on
    request = open_request(first, "north", None, study, SITES)
    assert request.leaving.together == 160
    with pytest.raises(CannotCertify, match="160 records together"):
        Aim(epsilon=0.1, rounds=4, keep=1.0).design(request.bundle, request.leaving)
    assert Aim(epsilon=0.1, rounds=4).design(request.bundle, request.leaving).chosen.keep == 0
