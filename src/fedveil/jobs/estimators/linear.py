"""What the private estimators share: from their parameters to a fit, and from the fitted weights to scores."""

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from fedveil.certificate.assumptions import Assumption
from fedveil.certificate.certify import Certificate
from fedveil.core.errors import BadValue, require
from fedveil.core.tables import filled
from fedveil.core.values import Vector
from fedveil.data.records import Records
from fedveil.data.split import natural_owners
from fedveil.jobs.estimators.budget import Budget
from fedveil.jobs.estimators.fitting import Fitted, Learning, fit
from fedveil.jobs.estimators.preparing import outline_of, planned, request_of, unsure_range
from fedveil.jobs.estimators.rows import StatedRows
from fedveil.jobs.estimators.surroundings import steps_that_learn, unaccounted_steps, unbudgeted_search
from fedveil.ledger.costs import cost_of
from fedveil.models.spec import ModelPlan
from fedveil.planning.design import read_request
from fedveil.privacy.target import Target
from fedveil.stages.prepare.request import BOUND
from fedveil.stages.train.request import ScheduleRequest, Task


class PrivateLinear(BaseEstimator):  # type: ignore[misc]
    """Fitting and scoring; the subclasses add labels or numbers to predict."""

    def _model_settings(self) -> dict[str, Any]:
        """Return what every model may state."""
        return {name: getattr(self, name) for name in ("l2", "clip", "radius", "shape", "knots")}

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
        found = fit(
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
        rule = stated if found.rule is None else found.rule
        for sentence in found.plan.warnings:
            warnings.warn(sentence, UserWarning, stacklevel=3)
        self.rule_, self.fit_, self.private_ = rule, found, found.plan.private
        self.epsilon_ = cost_of(found.plan, target.adversary).epsilon
        self.delta_ = target.delta
        return found

    @property
    def certificate_(self) -> Certificate:
        """The certificate: what the fit promises to each observer, by which bound and on which assumptions."""
        check_is_fitted(self, "fit_")
        found: Fitted = self.fit_
        return found.certificate()

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
