"""Curves that may only rise, or only fall: a released model made so by post-processing, which is free of charge."""

import math

import numpy as np
from scipy.optimize import isotonic_regression

from fedveil.core.values import Vector
from fedveil.data.column import LINE
from fedveil.models.spec import ModelPlan
from fedveil.stages.prepare.learned import LearnedRule


def made_monotone(model: ModelPlan, learned: LearnedRule, parameters: Vector) -> Vector:
    """Return the parameters nearest to these whose curves rise or fall as the model states.

    The line of such a column is laid into its hats: then the curve is straight between its knots on the scale of its
    range, and monotone if its values at the knots are.
    """
    if not (model.additive and model.monotone):
        return parameters
    found, start, ways = parameters.copy(), 0, dict(model.monotone)
    for one in learned.numbers:
        if one.name in ways:
            knots = np.array(one.knots)
            hats = slice(start + 1, start + 1 + knots.size)
            height = math.sqrt(1 - LINE)
            line = math.sqrt(LINE) * found[start] * np.clip((knots - one.mean) / one.spread, -1.0, 1.0)
            rising = ways[one.name] == "increasing"
            curve = isotonic_regression(line + height * found[hats], increasing=rising).x
            found[start], found[hats] = 0.0, curve / height
        start += learned.outline.block(one.name)
    return found
