"""What the private estimators share: from their parameters to a fit, and from the fitted weights to scores."""

import hashlib
import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import FrameType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.compose import ColumnTransformer
from sklearn.frozen import FrozenEstimator
from sklearn.impute import SimpleImputer
from sklearn.kernel_approximation import PolynomialCountSketch, RBFSampler
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, PolynomialFeatures, SplineTransformer
from sklearn.random_projection import BaseRandomProjection
from sklearn.utils import check_random_state, get_tags
from sklearn.utils.validation import check_is_fitted, validate_data

from fedveil.certificate.assumptions import Assumption, assumptions
from fedveil.certificate.certify import Certificate, Guarantee
from fedveil.core.errors import BadValue, require
from fedveil.core.tables import filled
from fedveil.core.values import Matrix, Vector
from fedveil.data.records import Records
from fedveil.data.split import natural_owners
from fedveil.engine.train import train
from fedveil.jobs.estimators.budget import Budget
from fedveil.jobs.estimators.preparing import (
    LearnedRows,
    StatedRows,
    outline_of,
    planned,
    prepared,
    request_of,
    unsure_range,
)
from fedveil.jobs.estimators.preparing import plan_of as prepared_plan
from fedveil.ledger.costs import cost_of, covered
from fedveil.models.spec import Curves, ModelPlan
from fedveil.noise.entropy import Entropy
from fedveil.planning.design import make_plan, read_request
from fedveil.planning.plan import Plan
from fedveil.planning.promises import ADVERSARIES, promise
from fedveil.privacy.guarantee import NAMELESS
from fedveil.privacy.target import Target
from fedveil.stages.prepare.columns import Outline
from fedveil.stages.prepare.request import BOUND
from fedveil.stages.sums import NoisySums
from fedveil.stages.train.request import AlgorithmRequest, ScheduleRequest, Task
from fedveil.version import __version__

# One fit: planned from public quantities, charged, trained in memory, certified.


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Learning:
    """The cells that rows are to be made of, what is public about them, and what is measured.

    ``numbers``: what is to be predicted in its own unit, where its range is to be learned.
    """

    X: Matrix
    numbers: Vector | None
    outline: Outline
    preparation: NoisySums


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fitted:
    """The model, the plan it came from, the run's name, and what the estimator itself assumed.

    ``rule``: the rule for rows, where it was learned; it is part of the model.
    """

    model: Vector
    plan: Plan
    run: str
    declared: tuple[Assumption, ...]
    rule: LearnedRows | None = None

    def certificate(self) -> Certificate:
        """Return what this fit promises to each observer."""
        guarantees = tuple(
            Guarantee(
                adversary=adversary,
                answer=promise(self.plan, adversary),
                assumptions=(*assumptions(self.plan, adversary), *self.declared),
            )
            for adversary in ADVERSARIES
        )
        released = {
            "what": "the final model",
            "file": "coef_, intercept_",
            "sha256": hashlib.sha256(_bytes(self.model, self.rule)).hexdigest(),
            "covered": covered(self.plan),
        }
        if self.rule is not None:
            released["what"] = "the final model and the preparation that was learned for it"
            released["file"] = "coef_, intercept_, rule_"
        return Certificate(
            plan=self.plan, run=self.run, version=__version__, guarantees=guarantees, released=(released,)
        )


def fit(
    records: Records,
    request: AlgorithmRequest,
    task: Task,
    *,
    seed: int | None,
    budget: Budget | None,
    declared: tuple[Assumption, ...],
    learning: Learning | None = None,
) -> Fitted:
    """Train; with a ``budget`` the whole cost is charged before the first record is looked at.

    ``learning``: what the rows of ``records`` are made of, where the rule for them is to be learned.
    """
    if learning is None:
        plan = plan_of(request, task, seed is not None)  # type: ignore[arg-type]  # schedule are frozen, so they hash
    else:
        plan = prepared_plan(request, task, learning.preparation, seed is not None)  # type: ignore[arg-type]
    run = os.urandom(16).hex()
    if budget is not None:
        budget.charge(run, plan)
    entropy = Entropy.from_system() if seed is None else Entropy.from_seed(seed)
    rule = None
    if learning is not None:
        rule, records = prepared(plan, learning.outline, learning.X, learning.numbers, records, entropy)
    model = train(plan, records, entropy).model
    if budget is not None:
        budget.release(run, _bytes(model, rule))
    return Fitted(model=model, plan=plan, run=run, declared=declared, rule=rule)


@lru_cache(maxsize=128)
def plan_of(request: AlgorithmRequest, task: Task, seeded: bool) -> Plan:
    """Return the plan of a fit; cached.

    Designing takes most of a fit's time and depends only on public quantities, so folds of the same size share a plan.
    """
    return make_plan("estimator", request, task, seeded=seeded).plan


def _bytes(model: Vector, rule: LearnedRows | None = None) -> bytes:
    learned = b"" if rule is None else rule.learned.text().encode() + repr(rule.target).encode()
    return bytes(model.astype("<f8").tobytes()) + learned


# Notice who fits an estimator: a search that fits it many times, or a pipeline with steps that learn without noise.
#
# Both are read off the call stack. scikit-learn hands an estimator nothing but arrays, so there is no other way to see
# that they come from a scaler that was fitted to the same records.

_FITS_MANY = ("sklearn.model_selection._validation", "_fit_and_score")  # what fits each copy on each fold
_DEEPEST = 60  # frames above a fit that are looked at; a pipeline adds a few
_SHAPES_ALONE = (PolynomialFeatures, PolynomialCountSketch, RBFSampler, BaseRandomProjection, FrozenEstimator)


def unbudgeted_search(budget: Budget | None) -> str | None:
    """Return a warning if this fit is one of many that nobody adds up; None otherwise."""
    searched = any((one.f_globals.get("__name__"), one.f_code.co_name) == _FITS_MANY for one in _frames())
    if budget is not None or not searched:
        return None
    return (
        "This fit is one of many, by a search or a cross-validation, and no budget adds them up: each fold and each "
        "setting is a release of its own. Give budget=Budget(...), or search with: fedveil tune."
    )


def unaccounted_steps(learned: tuple[str, ...]) -> str | None:
    """Return a warning about steps that were fitted to the records before this fit; None if there are none."""
    if not learned:
        return None
    return (
        f"{', '.join(learned)} in the pipeline learned from the same records without noise, and no certificate covers "
        "it. Leave such steps out (the estimator scales its columns itself, privately), or use steps that learn "
        "nothing, such as FunctionTransformer."
    )


def steps_that_learn() -> tuple[str, ...]:
    """Return the names of the steps, in pipelines that are being fitted now, that learn from records."""
    result: list[str] = []
    for frame in _frames():
        owner = frame.f_locals.get("self")
        if isinstance(owner, Pipeline) and frame.f_code.co_name.startswith("fit"):
            result += [name for _, step in owner.steps[:-1] for name in learned_by(step)]
    return tuple(dict.fromkeys(result))


def learned_by(step: Any) -> Iterator[str]:
    """Yield the name of each transformer in a step whose fit looks at the values of records.

    scikit-learn's tag says which transformers need no fit. Some others learn no more than how many columns there are.
    """
    match step:
        case None | str():  # "passthrough", "drop"
            return
        case Pipeline():
            inner = [one for _, one in step.steps]
        case FeatureUnion():
            inner = [one for _, one in step.transformer_list]
        case ColumnTransformer():
            inner = [*(one[1] for one in step.transformers), step.remainder]
        case _:
            if not _learns_nothing(step):
                yield type(step).__name__
            return
    for one in inner:
        yield from learned_by(one)


def _learns_nothing(step: Any) -> bool:
    match step:
        case OneHotEncoder() | OrdinalEncoder():
            return not isinstance(step.categories, str)
        case SimpleImputer():
            return step.strategy == "constant" and step.fill_value is not None
        case SplineTransformer():
            return isinstance(step.knots, np.ndarray)
        case _:
            return isinstance(step, _SHAPES_ALONE) or not get_tags(step).requires_fit


def _frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_DEEPEST):
        if frame is None:
            return
        yield frame
        frame = frame.f_back


class PrivateLinear(BaseEstimator):  # type: ignore[misc]
    """Fitting and scoring; the subclasses add labels or numbers to predict."""

    def _model_settings(self) -> dict[str, Any]:
        """Return what every model may state."""
        curves = Curves(shape=self.shape, knots=self.knots)
        return {"curves": curves, **{name: getattr(self, name) for name in ("l2", "clip", "radius")}}

    def _fitted(
        self,
        X: Any,
        targets: Vector,
        clients: Any,
        model: ModelPlan,
        classes: int,
        declared: tuple[Assumption, ...],
        open_range: bool = False,
    ) -> Fitted:
        """Fit checked rows; set the attributes that all estimators have.

        ``targets``: class indices or numbers in [-1, 1]; with ``open_range`` numbers in a range that is to be learned.
        """
        asked = request_of(self.prepare, self.feature_bound)
        hint = "Or leave feature_bound and prepare out, so that what is not stated is learned with noise."
        require(asked is not None or not open_range, "target_range", "be given where nothing is learned", None, hint)
        require(asked is not None or self.feature_bound is not None, "feature_bound", "be given likewise", None, hint)
        bound = BOUND if self.feature_bound is None else self.feature_bound
        stated = StatedRows.of(bound, self.feature_range, bool(self.fit_intercept), X.shape[1])
        hint = "Persons with several rows: give fedveil.run_study a frame, and name them in data.person_column."
        require(self.unit in NAMELESS, "unit", f"be one of {', '.join(NAMELESS)}", self.unit, hint)
        owner, names = _owners(clients, targets.size, apart=self.unit == "client")
        records = Records(
            features=stated.rows(X) if asked is None else np.ones((targets.size, 1)),  # the rows are made later
            targets=np.zeros_like(targets) if open_range else targets,
            owner=owner,
            clients=len(names) or int(owner[-1]) + 1,
            bound=stated.total if asked is None else 1.0,
            classes=classes,
            names=names,
        )
        target = Target(
            epsilon=self.epsilon,
            delta=self.delta,
            adversary=self.adversary,
            unit=self.unit,
            neighbours=self.neighbours,
        )
        learning, shape = None, records.shape
        if asked is not None:
            outline = outline_of(stated, X.shape[1], asked, open_range)
            model, measured, outline, shape = planned(asked, model, outline, shape, target)
            numbers = targets if open_range else None
            if open_range and (unsure := unsure_range(measured, outline, shape, target)) is not None:
                warnings.warn(unsure, UserWarning, stacklevel=3)
            learning = Learning(X=X, numbers=numbers, outline=outline, preparation=measured)
        budget = self.budget
        right = budget is None or isinstance(budget, Budget)
        require(right, "budget", "be a fedveil.Budget", type(budget).__name__)
        for sentence in (unbudgeted_search(budget), unaccounted_steps(learned_before := steps_that_learn())):
            if sentence is not None:
                warnings.warn(sentence, UserWarning, stacklevel=3)
        result = fit(
            records,
            read_request(_table("algorithm", self.algorithm)),
            Task(
                data=shape,
                model=model,
                target=target,
                schedule=filled(ScheduleRequest, _table("schedule", self.schedule), "schedule"),
            ),
            seed=self._seed(),
            budget=budget,
            declared=(*declared, *self._declared(learned_before)),
            learning=learning,
        )
        rule = stated if result.rule is None else result.rule
        for sentence in result.plan.warnings:
            warnings.warn(sentence, UserWarning, stacklevel=3)
        self.rule_, self.fit_, self.private_ = rule, result, result.plan.private
        self.epsilon_ = cost_of(result.plan, target.adversary).epsilon
        self.delta_ = target.delta
        return result

    @property
    def certificate_(self) -> Certificate:
        """The certificate: what the fit promises to each observer, by which bound and on which assumptions."""
        check_is_fitted(self, "fit_")
        result: Fitted = self.fit_
        return result.certificate()

    def _scores(self, X: Any) -> Vector:
        """Return rows, prepared by the same rule as in fitting, times the weights."""
        check_is_fitted(self, "fit_")
        rows = self.rule_.rows(validate_data(self, X, dtype=np.float64, reset=False))
        weights: Vector = self.fit_.model
        outputs = self.fit_.plan.model.loss.outputs
        return np.asarray(rows @ (weights.reshape(-1, outputs) if outputs > 1 else weights))

    def _seed(self) -> int | None:
        """Return the seed, or None for the operating system's entropy. With a seed the fit is not private."""
        if self.random_state is None:
            return None
        if isinstance(self.random_state, int | np.integer) and not isinstance(self.random_state, bool):
            return int(self.random_state)
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _declared(self, learned_before: tuple[str, ...]) -> tuple[Assumption, ...]:
        spans = "none" if self.feature_range is None else "as given"
        return (
            Assumption("feature_range", spans, "declared: public, not computed from these records"),
            Assumption("number of records and of clients", "public", "declared: they shape the schedule"),
            Assumption("who owns which row", "public", "declared: clients were not chosen by looking at the records"),
            Assumption(
                "what else was computed from the records",
                "nothing" if not learned_before else f"NOT MET: {', '.join(learned_before)}",
                "declared: scalers, selected columns, folds by label and scores on records are releases of their own",
            ),
        )


def _table(name: str, given: Any) -> Mapping[str, Any]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise BadValue(f"{name} must be a dictionary as the [{name}] table of a study, got {given!r}.")
    return given


def _owners(clients: Any, rows: int, *, apart: bool) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Return the owner of each row and their names; without names one holder owns all.

    ``apart``: clients are protected, and each row is one of them.
    """
    if clients is None:
        return np.arange(rows, dtype=np.int64) * int(apart), ()
    labels = np.asarray(clients)
    fine = labels.shape == (rows,) and labels.dtype.kind in "biuUO"
    require(fine, "clients", f"name the client of each of the {rows} rows", (labels.shape, str(labels.dtype)))
    return natural_owners(labels.astype(str) if labels.dtype.kind in "bO" else labels)
