"""What follows from the numbers of a DP-SGD plan: the noise of its means and its largest batch."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from fedveil.stages.train.dpsgd.client_settings import DRAWN, ClientSettings, class_rate
from fedveil.theory.crowds import most_joined

if TYPE_CHECKING:
    from fedveil.stages.train.dpsgd.method import DpSgd


def mean_noise(method: DpSgd, client: int, records: int) -> float:
    """Return the noise of a client's mean gradient, root mean square over its rounds."""
    parts = method.parts_of(client)
    each = [p.noise * p.clip / (1.0 if method.clipping == "batch" else method.divisor(p, records)) for p in parts]
    if len(parts) == 1:
        found = method.correlated
        return each[0] if found is None else each[0] * found.factor.of_a_round(found.rounds)
    squares = math.fsum(p.rounds * noise * noise for p, noise in zip(parts, each, strict=True))
    return math.sqrt(squares / method.rounds_of(client))


def most_rows(method: DpSgd, settings: ClientSettings, records: int) -> int:
    """Return a size that a batch of such a client exceeds with a chance of at most 2**-100 a round (Bernstein)."""
    if method.sampling == "cyclic":
        return -(-records // settings.batches_a_pass)
    if method.sampling not in DRAWN:
        return settings.size(records)
    return most_joined(class_rate(settings.rate, method.classes), -(-records // method.classes))
