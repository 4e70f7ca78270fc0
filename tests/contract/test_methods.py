"""One suite for all: a new method joins the registry, adds an example, and inherits every law."""

import itertools
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np
import pytest
from method_examples import EXAMPLES, trained

from fedveil import run_study
from fedveil.certificate.assumptions import assumptions
from fedveil.certificate.certify import certify, client_epsilons, differences
from fedveil.core.errors import BadValue, CannotCertify
from fedveil.data.records import Records
from fedveil.noise.entropy import KEY_BYTES, Entropy
from fedveil.planning.plan import Plan, read_plan, write_plan
from fedveil.planning.promises import ADVERSARIES, grid_of, ideal, promise
from fedveil.privacy.guarantee import Adversary
from fedveil.report.page import write_report
from fedveil.stages.train.acting import acts_of
from fedveil.stages.train.registry import KINDS, facts_of, read_method, request_type
from fedveil.stages.train.request import Task

DELTAS = (1e-8, 1e-4, 1e-2)
SLACK = 1 + 1e-3  # what solvers leave: two bounds that are equal may be told apart by as much


@cache
def plan_of(name: str) -> Plan:
    return EXAMPLES[name].plan()


@cache
def data_of(name: str) -> Records:
    return EXAMPLES[name].data()


def key(number: int) -> Entropy:
    return Entropy.from_key(bytes([number]) * KEY_BYTES)


def epsilon(plan: Plan, adversary: Adversary, delta: float | None = None) -> float:
    return promise(plan, adversary, delta).epsilon


every_method = pytest.mark.parametrize("name", list(EXAMPLES))
every_observer = pytest.mark.parametrize("adversary", ADVERSARIES)


def test_every_method_has_a_wish_a_trainer_and_an_example() -> None:
    assert {example.kind for example in EXAMPLES.values()} == set(KINDS)
    for kind in KINDS:
        assert request_type(kind).kind == kind
        acts = acts_of(kind)
        assert acts.relay is not None or None not in (acts.asking, acts.answering, acts.noising)


class TestPlan:
    @every_method
    def test_its_text_reads_back_to_it(self, name: str) -> None:
        plan = plan_of(name)
        again = read_plan(write_plan(plan))
        assert again == plan
        assert again.hash == plan.hash
        assert write_plan(again) == write_plan(plan)

    @every_method
    def test_planning_again_gives_the_same_plan(self, name: str) -> None:
        assert EXAMPLES[name].plan() == plan_of(name)

    @every_method
    def test_every_change_changes_the_hash_and_reads_back(self, name: str) -> None:
        """No field is left out of the text: what is not written could be changed after the charge."""
        plan, accepted = plan_of(name), set[str]()
        for path, changed in variants(plan):
            accepted.add(path)
            assert changed.hash != plan.hash, path
            assert read_plan(write_plan(changed)) == changed, path
        assert {"name", "grid", "seeded", "target.epsilon", "target.delta"} <= accepted
        assert any(path.startswith("method.") for path in accepted)

    @every_method
    def test_a_key_that_nobody_reads_is_refused(self, name: str) -> None:
        text = write_plan(plan_of(name)).replace("[method]", "[method]\nstray = 1")
        with pytest.raises(BadValue, match="stray"):
            read_plan(text)

    @every_method
    def test_a_plan_without_one_of_its_keys_is_refused_or_the_same_or_another(self, name: str) -> None:
        """Nothing but a plan or a refusal: a missing key never ends in another error."""
        plan = plan_of(name)
        lines = write_plan(plan).splitlines()
        for index in range(lines.index("[method]") + 1, len(lines)):
            text = "\n".join([*lines[:index], *lines[index + 1 :]])
            try:
                found = read_plan(text)
            except BadValue:
                continue
            assert found == plan or found.hash != plan.hash


class TestPromise:
    @every_observer
    @every_method
    def test_epsilon_falls_as_delta_grows_and_is_a_number(self, name: str, adversary: Adversary) -> None:
        values = [epsilon(plan_of(name), adversary, delta) for delta in DELTAS]
        assert not any(math.isnan(value) or value < 0 for value in values)
        assert all(after <= before * SLACK for before, after in itertools.pairwise(values))

    @every_observer
    @every_method
    def test_what_is_certified_is_one_of_the_bounds(self, name: str, adversary: Adversary) -> None:
        answer = promise(plan_of(name), adversary)
        proved = [b for b in answer.bounds if b.status == "certified" and b.epsilon is not None]
        assert all(b.name and b.reason for b in answer.bounds)
        if answer.epsilon < math.inf:
            assert answer.certified_by is not None
            assert answer.epsilon == pytest.approx(min(b.epsilon for b in proved if b.epsilon is not None), rel=1e-9)
        else:
            assert answer.certified_by is None

    @every_method
    def test_whoever_sees_more_is_promised_no_more(self, name: str) -> None:
        chain: Any = EXAMPLES[name].chain
        values = [epsilon(plan_of(name), adversary) for adversary in chain]
        assert all(less <= more * SLACK for less, more in itertools.pairwise(values)), dict(
            zip(chain, values, strict=True)
        )
        assert epsilon(plan_of(name), "final-model") <= epsilon(plan_of(name), "curious-client") * SLACK

    @every_method
    def test_the_target_is_met(self, name: str) -> None:
        plan = plan_of(name)
        assert epsilon(plan, plan.target.adversary) <= plan.target.epsilon

    @every_method
    def test_twice_the_noise_never_costs_privacy(self, name: str) -> None:
        plan, example = plan_of(name), EXAMPLES[name]
        louder = replace(plan, method=read_method(example.kind, doubled(plan.method.table(), example.noise)))
        for adversary in ADVERSARIES:
            assert epsilon(louder, adversary) <= epsilon(plan, adversary) * SLACK
        who = plan.target.adversary
        assert epsilon(louder, who) < epsilon(plan, who)

    @every_method
    def test_noise_for_half_the_epsilon_meets_half_the_epsilon(self, name: str) -> None:
        plan, study = plan_of(name), EXAMPLES[name].study
        task = Task(data=plan.data, model=plan.model, target=plan.target, schedule=study.schedule, trust=plan.trust)
        half = plan.target.epsilon / 2
        again = study.algorithm.recalibrated(plan.method, task, epsilon=half, delta=plan.target.delta)
        assert again.kind == plan.method.kind
        answer = ideal(replace(plan, method=again), plan.target.adversary, plan.target.delta)
        calibrated = EXAMPLES[name].calibrated
        assert 0.9 * half <= answer.epsilon <= half * SLACK if calibrated else again == plan.method

    @every_method
    def test_no_client_is_promised_less_than_all_of_them(self, name: str) -> None:
        plan = plan_of(name)
        own, together = client_epsilons(plan), epsilon(plan, plan.target.adversary)
        assert EXAMPLES[name].per_client == (own != ())
        if own:
            assert [client for client, _ in own] == list(range(plan.data.clients))
            assert max(value for _, value in own) == pytest.approx(together, rel=1e-3)
            assert all(0 <= value <= together for _, value in own)


class TestGrid:
    @every_observer
    @every_method
    def test_the_grid_costs_next_to_nothing(self, name: str, adversary: Adversary) -> None:
        plan = plan_of(name)
        grid = grid_of(plan, adversary)
        assert grid.exponent == plan.grid
        assert 0 < grid.total_variation <= 1e-3 * plan.target.delta
        assert 0 <= grid.distance <= 1e-4
        least = ideal(plan, adversary, plan.target.delta).epsilon
        assert least <= epsilon(plan, adversary) * SLACK
        assert epsilon(plan, adversary) <= least * 1.001 or least > 20  # e^epsilon times the distance must fit in delta


class TestWords:
    @every_observer
    @every_method
    def test_every_assumption_is_named_valued_and_kept_by_something(self, name: str, adversary: Adversary) -> None:
        rows = assumptions(plan_of(name), adversary)
        assert len(rows) > 3  # beside feature bound, randomness and grid
        assert all(text.strip() for row in rows for text in (row.name, row.value, row.enforced_by))
        assert len({row.name for row in rows}) == len(rows)

    @every_method
    def test_facts_can_be_read(self, name: str) -> None:
        plan = plan_of(name)
        facts = facts_of(plan.method, plan.setup)
        assert facts
        assert all(isinstance(text, str) and text.strip() for row in facts for text in row)
        assert len({label for label, _ in facts}) == len(facts)


class TestTraining:
    @every_method
    def test_the_same_key_gives_the_same_model_and_another_another(self, name: str) -> None:
        plan, records = plan_of(name), data_of(name)
        first, again, other = (trained(plan, records, key(k)) for k in (1, 1, 2))
        assert first.shape == (plan.dimension,)
        assert np.isfinite(first).all()
        assert first.tobytes() == again.tobytes()
        assert (first != other).all()  # noise in every coordinate

    @every_method
    def test_the_model_lies_in_its_ball_and_on_its_grid(self, name: str) -> None:
        plan = plan_of(name)
        model = trained(plan, data_of(name), key(3))
        assert np.linalg.norm(model) <= plan.radius * (1 + 1e-9)
        assert plan.method.total >= 1


class TestRecords:
    @pytest.mark.parametrize(
        ("name", "seed"), [*((name, None) for name in EXAMPLES), *((kind, 5) for kind in KINDS if kind in EXAMPLES)]
    )
    def test_a_run_is_certified_and_reported_from_its_records_alone(
        self, name: str, seed: int | None, tmp_path: Path
    ) -> None:
        tables = EXAMPLES[name].tables
        if seed is not None:
            tables["study"]["seed"] = seed
        run_study(tables, out=tmp_path, data=data_of(name))
        text = (tmp_path / "certificate.json").read_text()
        stated = json.loads(text)
        found = certify(tmp_path, stated["version"])
        assert differences(found, text) == []
        assert found.private is (seed is None) is stated["private"]
        if seed is not None:
            assert {row["epsilon"] for row in stated["guarantees"]} == {None}
            assert {row["epsilon"] for row in stated.get("clients", [])} <= {None}
        else:
            who = found.plan.target.adversary
            assert next(r["epsilon"] for r in stated["guarantees"] if r["adversary"] == who) <= 4.0
        page = write_report(tmp_path).read_text()
        assert ("NOT PRIVATE" in page) is (seed is not None)
        assert ("only the last is released" in page) is (found.plan.method.kind == "hidden")


def doubled(table: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """The table with twice these numbers, or twice each in these lists."""
    assert set(names) <= set(table)
    twice = {k: [2 * v for v in table[k]] if isinstance(table[k], list | tuple) else 2 * table[k] for k in names}
    return {k: list(v) if isinstance(v, tuple) else v for k, v in {**table, **twice}.items() if v is not None}


def variants(value: Any) -> Iterator[tuple[str, Any]]:
    """The value with one field changed, in every way that is tried and not refused; nested values too."""
    hints = get_type_hints(type(value))
    for field in fields(value):
        if not field.init:
            continue
        old = getattr(value, field.name)
        near = (("", new) for new in others(old, hints[field.name]) if new != old)
        inner = variants(old) if is_dataclass(old) else near
        for path, new in inner:
            try:
                yield f"{field.name}.{path}".rstrip("."), replace(value, **{field.name: new})
            except (BadValue, CannotCertify):
                continue


def others(old: Any, hint: Any) -> Iterator[Any]:
    """Values of the kind that a field may hold, next to the old one and farther off."""
    if isinstance(old, bool):
        yield not old
    elif isinstance(old, int):
        yield from (old + 1, old - 1, 2 * old)
    elif isinstance(old, float):
        yield from (math.nextafter(old, math.inf), math.nextafter(old, -math.inf), 2 * old, old / 2, old + 0.25)
    elif isinstance(old, tuple):
        for index, item in enumerate(old):
            near = (new for _, new in variants(item)) if is_dataclass(item) else others(item, hint)
            yield from ((*old[:index], new, *old[index + 1 :]) for new in near)
    elif isinstance(old, str):
        yield from (word for word in words_of(hint) if word != old)
        yield from (f"{old} \"'\\é", f"{old} \"'\\\n\x7fé")
    elif old is None:
        yield from (word for word in words_of(hint) if word is not None)
        yield from (1, 0.5)


def words_of(hint: Any) -> tuple[Any, ...]:
    """The words that a Literal allows, whatever stands around it."""
    if get_origin(hint) is Literal:
        return get_args(hint)
    return tuple(itertools.chain.from_iterable(words_of(part) for part in get_args(hint)))
