"""The aggregator's end of its relay when there is none, and Flower's commands when one of them fails."""

import socket
from pathlib import Path

import pytest

from fedveil.errors import FedveilError
from fedveil.run.flower.network import FlowerFailed, flwr
from fedveil.run.relay_carrier import RelayCarrier, RelayLost
from fedveil.run.site_socket import listening


def no_link() -> None:
    raise FedveilError("The link is away.")


def test_without_a_link_the_sentence_says_how_to_go_on(tmp_path: Path) -> None:
    with listening(tmp_path / "relay.sock") as door:
        carrier = RelayCarrier(door, no_link)
        with pytest.raises(RelayLost, match=r"go on with --resume when the link is back\. The link is away\."):
            carrier.online()


def test_messages_of_a_lost_relay_count_as_failed(tmp_path: Path) -> None:
    """The relay goes away in the middle of an order: what it had is reported as lost, not waited for."""
    path = tmp_path / "relay.sock"
    relays: list[socket.socket] = []

    def submit() -> None:
        relays.append(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        relays[-1].connect(str(path))
        relays[-1].shutdown(socket.SHUT_RDWR)

    with listening(path) as door:
        carrier = RelayCarrier(door, submit)
        assert carrier.push("7", b"sealed", 1.0) == ""
        assert carrier.pull(["", "one"]) == {"": b"", "one": b""}
        with pytest.raises(RelayLost, match="again and again"):
            carrier.online()
        carrier.close()
    for relay in relays:
        relay.close()


def test_the_first_command_of_flowers_that_fails_is_the_last(tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    commands = [["--version"], ["run", str(tmp_path / "nothing"), "nowhere"], ["--version"]]
    with pytest.raises(FlowerFailed, match="Flower says: Flower version") as failed:
        flwr(tmp_path, commands)
    assert str(failed.value).count("Flower version") == 1
