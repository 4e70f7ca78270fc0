"""Planned bytes against what trainers count and what roles really send; the B-bit bound against its formula."""

import math
from dataclasses import replace
from functools import lru_cache
from types import SimpleNamespace

import numpy as np
import pytest

from contract.method_examples import EXAMPLES
from fedveil.core.errors import BadValue
from fedveil.engine.train import train
from fedveil.noise.entropy import Entropy
from fedveil.planning.plan import Plan
from fedveil.privacy.trust import Server, Trust
from fedveil.report.communication import WAYS, bytes_of, coded_gap, masking_bytes, traffic, traffic_of, way_of
from fedveil.stages.train.settings import CompressionRequest
from fedveil.sums.homomorphic.library import has_tenseal
from fedveil.sums.homomorphic.messages import typical_bytes, typical_key_bytes
from fedveil.sums.homomorphic.rounds import HomomorphicSumming
from unit.plans import some_plan, some_records


@lru_cache
def plan_of(name: str) -> Plan:
    return EXAMPLES[name].plan()


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_planned_bytes_are_those_that_trainers_count(name: str) -> None:
    example = EXAMPLES[name]
    plan = plan_of(name)
    found = bytes_of(plan, way_of(plan))
    counted = train(plan, example.data(), Entropy.from_seed(1))
    if plan.method.kind == "hidden" and plan.method.deal == "clients" and plan.target.unit == "record":
        assert found.total_up <= counted.bytes_up  # it does not know that these clients come whole
    elif plan.method.kind == "dpsgd" and not plan.method.network.instant:  # type: ignore[attr-defined]
        assert counted.bytes_up <= found.total_up
    else:
        assert counted.bytes_up == found.total_up
    assert found.messages <= found.most * plan.data.clients


def test_ways_and_their_sizes() -> None:
    records = some_records(600, features=200, clients=60)
    plan = some_plan(records)
    rows = {row.way: row for row in traffic_of(plan)}
    size = plan.dimension
    assert tuple(rows) == WAYS
    assert rows["plain"].up == rows["plain"].down == 8 * size
    assert rows["compressed"].up == size + 8
    more_up, more_down = masking_bytes(60)
    masked = rows["secure-aggregation"]
    assert (masked.up, masked.down) == (8 * size + more_up, 8 * size + more_down)
    assert rows["homomorphic"].up > 2 * 88_000
    assert rows["homomorphic"].once > 0
    assert rows["plain"].messages == 60 * 10  # sixty rounds of ten records
    assert rows["homomorphic"].messages == 60 * 60  # nobody may be told apart by being absent
    assert rows["homomorphic"].total_down == 60 * 60 * 8 * size + 60 * rows["homomorphic"].once


def test_simfl_has_no_server() -> None:
    name = next(name for name in EXAMPLES if EXAMPLES[name].kind == "simfl")
    assert [row.way for row in traffic_of(plan_of(name))] == ["plain", "compressed"]


@pytest.mark.parametrize(
    ("server", "way"),
    [("trusted", "plain"), ("secure-aggregation", "secure-aggregation"), ("homomorphic", "homomorphic")],
)
def test_trust_decides_the_way(server: Server, way: str) -> None:
    plan = replace(some_plan(some_records()), trust=Trust(server=server))
    assert way_of(plan) == way
    assert bytes_of(plan, "plain").messages == 6 * 60  # by parts, everybody sends in every round


def test_compression_of_the_plan_is_used() -> None:
    name = next(name for name in EXAMPLES if EXAMPLES[name].kind == "dpsgd")
    plan = replace(plan_of(name), trust=Trust(noise="local"))
    plan = replace(plan, method=replace(plan.method, compression=CompressionRequest(kind="top-k", keep=0.5)))  # type: ignore[type-var]
    assert way_of(plan) == "compressed"
    assert bytes_of(plan, "compressed").up == 12 * max(1, plan.dimension // 2)


def test_the_bound_is_the_specs() -> None:
    records = some_records(600, features=20, clients=60)
    plan = some_plan(records)
    plain, small = bytes_of(plan, "plain"), bytes_of(plan, "compressed")
    found = coded_gap(plan, plain)
    bits = 64 * plan.dimension
    assert found.bits == bits
    assert found.one_round == pytest.approx(math.sqrt(2 * math.log(2) * bits / 10) / 60)
    assert found.run_bits == bits * 60
    assert found.whole_run == pytest.approx(found.one_round * math.sqrt(60))
    assert coded_gap(plan, small).one_round < found.one_round
    assert coded_gap(plan, bytes_of(plan, "homomorphic")) == found  # encryption says nothing more


def test_unknown_ways_are_refused() -> None:
    with pytest.raises(BadValue, match="way must be one of plain"):
        bytes_of(some_plan(some_records()), "pigeon")  # type: ignore[arg-type]


@pytest.mark.skipif(not has_tenseal(), reason="TenSEAL is not installed (fedveil[he])")
@pytest.mark.parametrize("size", [10, 5000])
def test_typical_bytes_of_ciphertexts_are_typical(size: int) -> None:
    summing = HomomorphicSumming(3)
    summing(0, {client: np.arange(size) for client in range(3)})
    assert summing.uploaded == pytest.approx(typical_bytes(summing.parameters, size), rel=0.01)
    assert summing.downloaded == pytest.approx(typical_key_bytes(summing.parameters), rel=0.01)


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_the_section_names_this_runs_way_and_the_bounds_assumptions(name: str) -> None:
    text = traffic(SimpleNamespace(plan=plan_of(name)))  # type: ignore[arg-type]
    if plan_of(name).data.clients == 1:
        assert text is None
        return
    assert text is not None
    assert text.count(" – this run") == 1
    assert "R-sub-Gaussian" in text
    assert "a yardstick, not a promise" in text


def test_one_data_holder_sends_nothing() -> None:
    assert traffic(SimpleNamespace(plan=some_plan(some_records(60, clients=1)))) is None  # type: ignore[arg-type]
