"""What must not last for ever is ended, and nothing else."""

from threading import Event

import pytest

pytest.importorskip("flwr", reason="needs fedveil[flower]")

from fedveil.federation.flower.beating import at_most


def test_what_takes_too_long_is_ended() -> None:
    ended = Event()
    with at_most(0.01, ended.set):
        assert ended.wait(60)


def test_what_ends_in_time_is_left_alone() -> None:
    ended = Event()
    with at_most(3600, ended.set):
        pass
    assert not ended.is_set()
