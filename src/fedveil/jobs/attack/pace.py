"""How long a repeated piece of work takes, said while it goes on."""

import time
from dataclasses import dataclass, field


@dataclass(slots=True)
class Pace:
    """Says how much of ``total`` equal pieces is left, from how long those before took."""

    total: int
    began: float = field(default_factory=time.monotonic)

    def left(self, made: int) -> str:
        """Return the time that the rest takes at most, in words; nothing is known before the first piece is made."""
        if made < 1:
            return ""
        return f", at most {(time.monotonic() - self.began) / made * (self.total - made):,.0f} s more"
