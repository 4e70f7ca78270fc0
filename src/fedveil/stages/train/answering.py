"""Which algorithms let a module add its own answer to a noised direction, as an adversarial pair does.

All that such an algorithm's update is computed from is noised before; the others promise more by hiding models, or let
clients train with plain gradients, and an answer has no place there.
"""

from typing import Final

ANSWERING: Final = ("dpsgd",)
