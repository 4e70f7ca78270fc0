"""What evaluates the model of a plan, for whoever adds up and for a site alike."""

from fedveil.core.values import Vector
from fedveil.planning.plan import Plan
from fedveil.stages.evaluate.evaluator import ModelEvaluator


def evaluator_of(plan: Plan, model: Vector) -> ModelEvaluator:
    """Return what evaluates a model of this plan."""
    return ModelEvaluator(plan.model.loss, model, plan.evaluation, plan.data, plan.target.unit, plan.trust)
