"""The membership game: a number is shown that holds one record's part or not, behind noise; the player guesses which.

The coin and the noise are drawn by the system's randomness when a number is shown, and told only after the guess.
"""

import secrets
import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

from fedveil.core.errors import require

_MOST = 200  # games that are remembered
_draw = secrets.SystemRandom()


@dataclass(slots=True)
class _Game:
    noise: float
    used: bool = False
    waiting: bool = False
    played: int = 0
    right: int = 0


@dataclass(slots=True)
class Games:
    """All games that are being played, each with the noise that it began with."""

    known: "OrderedDict[str, _Game]" = field(default_factory=OrderedDict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, noise: float) -> str:
        """Begin a game and return its name."""
        require(0 < noise < float("inf"), "noise", "be positive and finite", noise)
        name = secrets.token_hex(8)
        with self.lock:
            self.known[name] = _Game(noise)
            while len(self.known) > _MOST:
                self.known.popitem(last=False)
        return name

    def number(self, name: object) -> dict[str, Any]:
        """Toss the coin, and return the number that the player sees."""
        with self.lock:
            game = self._game(name)
            require(not game.waiting, "The game", "have its last number guessed first", "another number")
            game.used, game.waiting = _draw.random() < 0.5, True
            return {"number": game.used + _draw.gauss(0.0, game.noise)}

    def guess(self, name: object, used: object) -> dict[str, Any]:
        """Return whether the guess was right, and how many were so far."""
        with self.lock:
            game = self._game(name)
            require(game.waiting, "The game", "show a number before it is guessed", "no number")
            require(isinstance(used, bool), "The guess", "be true or false", str(used)[:20])
            game.waiting = False
            game.played += 1
            game.right += used == game.used
            return {"used": game.used, "played": game.played, "right": game.right}

    def _game(self, name: object) -> _Game:
        require(name in self.known, "The game", "be one that was begun here", str(name)[:40], "Begin a new one.")
        return self.known[str(name)]
