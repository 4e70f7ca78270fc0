"""In these tests the system's randomness repeats itself, except in other processes."""

import os
import subprocess
import sys

from fedveil.noise.entropy import Entropy

HERE = os.urandom  # what fedveil found when it was loaded


def drawn(test: str) -> list[int]:
    """Words of a private key, as the test of this name draws them first."""
    HERE.begin(test)  # type: ignore[attr-defined]  # conftest.py's
    entropy = Entropy.from_system()
    assert entropy.private
    return entropy.words("noise", 0, 4).tolist()


def test_what_a_test_draws_depends_on_its_name_alone() -> None:
    first = drawn("one")
    assert drawn("two") != first
    assert drawn("one") == first
    assert Entropy.from_system().words("noise", 0, 4).tolist() != first  # the second key of the same test


def test_a_forked_child_draws_by_itself() -> None:
    HERE.begin("a parent and its child")  # type: ignore[attr-defined]
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        os.write(write, os.urandom(32))
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        told = pipe.read()
    os.waitpid(child, 0)
    assert len(told) == 32
    assert told != os.urandom(32)


def test_a_process_that_a_test_starts_draws_by_itself() -> None:
    ask = [sys.executable, "-c", "import os; print(os.urandom(32).hex())"]
    told = {subprocess.run(ask, capture_output=True, text=True, check=True).stdout for _ in range(2)}
    assert len(told) == 2
