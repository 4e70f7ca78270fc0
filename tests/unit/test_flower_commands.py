"""Flower's commands: what is said where it is missing, or refuses."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fedveil.core.errors import NotAvailable
from fedveil.federation.carrying.processes import Processes, free_port
from fedveil.federation.flower.channel import Link
from fedveil.federation.flower.flower_node import run_flower_node
from fedveil.federation.flower.network import FlowerFailed, register, start_link, write_connection


@pytest.fixture
def link(tmp_path: Path) -> Link:
    return Link(name="nowhere", host="127.0.0.1", port=free_port(), authority=tmp_path / "authority.pem")


def test_without_flower_the_way_out_is_said(link: Link, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flwr", None)
    with Processes(tmp_path / "home", tmp_path / "logs") as processes:
        needing: list[Callable[[], object]] = [
            lambda: register(tmp_path, link, {}),
            lambda: start_link(processes, link, tmp_path),
            lambda: run_flower_node(link, tmp_path, tmp_path, 1.0, lambda: True, lambda _: None),
        ]
        for one in needing:
            with pytest.raises(NotAvailable, match=r"pip install 'fedveil\[flower\]'"):
                one()
        assert not processes.started


def test_a_node_that_is_not_registered_is_named(link: Link, tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    write_connection(tmp_path, link)
    with pytest.raises(FlowerFailed, match=r"Flower says: Error .*north\.pub' does not exist\.$"):
        register(tmp_path, link, {"north": tmp_path / "north.pub"})
