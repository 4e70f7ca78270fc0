"""Speed and memory against other libraries: every module here with a ``run() -> list[Row]`` is found and run."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """One bar: what is compared, the largest ratio (or amount) allowed, what was measured, and how."""

    name: str
    bar: float
    measured: float
    detail: str = ""

    @property
    def holds(self) -> bool:
        return self.measured <= self.bar
