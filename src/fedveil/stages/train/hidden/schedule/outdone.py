"""Whether a schedule can be left out before its noise is certified, because another one is certified to do better.

What units that draw their own rounds need takes seconds to work out for one amount of noise, and calibrating asks for
many. One question is enough to leave such a schedule out: does it miss the target even with the noise at which it would
be as good as its rival? With less noise it misses it all the more, so it needs more, and its risk is higher. Nothing
that is chosen depends on this file, only how soon.
"""

import math
from collections.abc import Callable

from fedveil.stages.train.hidden.schedule.families import Shape
from fedveil.stages.train.hidden.schedule.search import expected_from, taken_up_to

Misses = Callable[[Shape, float], bool]  # whether a shape with its noise times a factor surely misses the target
_MARGIN = 1e-3  # of the noise: far more than the bounds waver
_MORE = (2.0, 1.0)  # if it misses the target with more noise, it does with less, and more noise is sooner worked out


def outdone(shape: Shape, rival: Shape, hoped: Shape, misses: Misses) -> bool:
    """Return whether ``shape`` would neither be chosen nor change what else is certified, once it were certified.

    ``rival``: another shape with certified noise; ``hoped``: the same before. True only if the certified risk of
    ``shape`` is so high that the rival would still have been worth certifying after it, and would be taken before it.
    """
    most = max(expected_from(hoped), taken_up_to(shape, rival)) * (1 + 1e-6)
    noise = most - shape.bias - shape.sampling
    if noise <= 0:
        return True  # no noise at all makes it that good
    least = math.sqrt(noise / shape.injected) * (1 + _MARGIN)
    return any(misses(shape, least * more) for more in _MORE)
