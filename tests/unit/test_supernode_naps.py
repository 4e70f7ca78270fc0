"""Flower's loop sleeps less while a run goes on, never more than it asked, and as before when nothing comes."""

from dataclasses import dataclass, field

from fedveil.federation.flower.supernode import Naps


@dataclass
class Still:
    """A clock that only notes how long it would have slept; ``look``: what passes between two looks at it."""

    slept: list[float] = field(default_factory=list)
    look: float = 0.0
    now: float = 7.0

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)

    def monotonic(self) -> float:
        self.now += self.look
        return self.now


def test_a_message_makes_the_next_looks_quick_and_silence_makes_them_rare() -> None:
    clock = Still()
    naps = Naps(clock)
    for _ in range(100):
        naps.sleep(3)
    assert clock.slept == sorted(clock.slept)
    assert clock.slept[0] < 0.2
    assert clock.slept[-1] == 3
    assert 30 < sum(clock.slept[:70]) < 90  # a minute or so until it is as rare as Flower's own
    naps.sleep(0.5)  # a message has come, and its answer is awaited
    naps.sleep(3)
    assert max(clock.slept[-2:]) < 0.2
    naps.sleep(0.01)
    assert clock.slept[-1] == 0.01
    assert naps.monotonic() == 7.0


def test_a_slow_link_is_looked_at_less_often() -> None:
    clock = Still()
    naps = Naps(clock)
    naps.sleep(3)
    clock.look = 0.2
    naps.sleep(3)
    assert 0.9 < clock.slept[-1] < 1.1  # five times as long as the look
    clock.look = 2.0
    naps.sleep(3)
    assert clock.slept[-1] == 3  # never longer than Flower itself
