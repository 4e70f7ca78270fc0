r"""The yardstick of the automatic design for a problem: what is expected of its noisy gradient steps.

Theory page: schedules.md.
"""

from fedveil.stages.train.hidden.schedule.problem import Problem
from fedveil.stages.train.yardstick import Yardstick as Yardstick
from fedveil.stages.train.yardstick import model_problem


def yardstick(problem: Problem) -> Yardstick:
    """The model problem of this problem's constants."""
    data = problem.smoothness - problem.strong_convexity
    return model_problem(
        dimension=problem.dimension,
        lipschitz=problem.lipschitz,
        data=data,
        ridge=problem.strong_convexity,
        distance=problem.lipschitz / (2 * data) if problem.distance is None else problem.distance,
        diameter=problem.diameter,
        outputs=problem.outputs,
    )
