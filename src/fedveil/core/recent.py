"""Results that are kept for the next call, as long as their arrays do not take too much memory together."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Final, Generic, ParamSpec, TypeVar, final

import numpy as np

Args = ParamSpec("Args")
Found = TypeVar("Found", bound=tuple[Any, ...])
_BYTES: Final = 2**27
_COUNT: Final = 32


@final
class Recent(Generic[Args, Found]):
    """Keeps the last results of a function of hashable arguments that returns tuples with arrays.

    A count alone would not do: one result may have a hundred numbers or ten million. The last one is always kept.
    """

    def __init__(self, function: Callable[Args, Found]) -> None:
        self._function, self._known = function, OrderedDict[Hashable, tuple[Found, int]]()

    def __call__(self, *args: Args.args, **named: Args.kwargs) -> Found:
        """Return the result, worked out or kept."""
        key = (args, tuple(sorted(named.items())))
        if key in self._known:
            self._known.move_to_end(key)
            return self._known[key][0]
        result = self._function(*args, **named)
        self._known[key] = result, sum(one.nbytes for one in result if isinstance(one, np.ndarray))
        while len(self._known) > 1 and (len(self._known) > _COUNT or self._size() > _BYTES):
            self._known.popitem(last=False)
        return result

    def cache_clear(self) -> None:
        """Forget all results, as the standard library's caches do."""
        self._known.clear()

    def _size(self) -> int:
        return sum(size for _, size in self._known.values())
