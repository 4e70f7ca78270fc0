"""Sites far away: every byte takes its time, and connections are cut; the run ends with the same bits, charged once."""

import asyncio
import random
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from statistics import median

import numpy as np
import pytest
from flower_trials import released, simulated, text, trial_network, trial_records

from fedveil.certificate.certify import certify
from fedveil.data.records import Records
from fedveil.federation.aggregator.consortium import Held
from fedveil.federation.flower.local import LocalNetwork
from fedveil.federation.flower.network import start_node
from fedveil.jobs.remote import federated
from fedveil.planning.study import read_study_without_data

pytest.importorskip("flwr")

MEGABIT = 1e6 / 8  # bytes


@dataclass
class Distance:
    """A proxy before the link: a line of its own for every connection, slow, of limited bandwidth, and sometimes cut.

    ``delay``: seconds each way; every chunk takes up to half as much again. ``bandwidth``: bytes a second each way. A
    chunk is what one read returns; about one of ``cuts`` ends its connection, in the middle of whatever it carried; 0:
    none does. ``trips``: how often a site has answered on its line, each after something had come down to it.
    """

    target: int
    delay: float = 0.05
    bandwidth: float = 10 * MEGABIT
    cuts: int = 0
    port: int = 0
    cut: int = 0
    trips: int = 0
    carried: int = 0
    _writers: list[asyncio.StreamWriter] = field(default_factory=list)
    _random: random.Random = field(default_factory=lambda: random.Random(7))

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        both: list[asyncio.StreamWriter],
        last: list[str],
        way: str,
    ) -> None:
        """Carry one way: chunks leave one after another as the bandwidth allows, and are under way at the same time."""
        loop, sending = asyncio.get_running_loop(), asyncio.Queue[tuple[float, bytes]]()

        async def arrive() -> None:
            while True:
                due, data = await sending.get()
                await asyncio.sleep(max(0.0, due - loop.time()))
                writer.write(data)
                await writer.drain()

        arriving = asyncio.create_task(arrive())
        free = due = loop.time()
        with suppress(OSError, asyncio.IncompleteReadError):
            while not arriving.done() and (data := await reader.read(2**16)):
                self.trips += way == "up" and last == ["down"]
                last[:] = [way]
                self.carried += len(data)
                if self.cuts and self._random.randrange(self.cuts) == 0:
                    self.cut += 1
                    break
                free = max(free, loop.time()) + len(data) / self.bandwidth
                due = max(due, free + self.delay * (1 + self._random.random() / 2))
                sending.put_nowait((due, data))
        arriving.cancel()
        await asyncio.gather(arriving, return_exceptions=True)
        for one in both:
            one.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            other_reader, other_writer = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.close()
            return
        both, last = [writer, other_writer], ["up"]
        self._writers += both
        await asyncio.gather(
            self._pump(reader, other_writer, both, last, "up"), self._pump(other_reader, writer, both, last, "down")
        )

    @contextmanager
    def open(self) -> Iterator[None]:
        """Serve in a thread of its own until the block is left."""
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, daemon=True)
        thread.start()

        async def start() -> asyncio.Server:
            return await asyncio.start_server(self._connected, "127.0.0.1", 0)

        async def stop() -> None:
            server.close()
            for writer in self._writers:
                writer.close()
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            await asyncio.gather(*(writer.wait_closed() for writer in self._writers), return_exceptions=True)

        server = asyncio.run_coroutine_threadsafe(start(), loop).result(10.0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield
        finally:
            asyncio.run_coroutine_threadsafe(stop(), loop).result(10.0)
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()


@contextmanager
def far_away(network: LocalNetwork, far: Distance) -> Iterator[None]:
    """Put this distance between the link and the nodes of a network."""
    with far.open():
        link = replace(network.link, port=far.port)
        for site, node in list(network.nodes.items()):
            node.stop()
            key = network.place(site) / "node.key"
            network.nodes[site] = start_node(network.processes, link, site, key, network.door(site))
        yield


OPEN, MASKED = "[trust]", '[trust]\nserver = "secure-aggregation"'


def test_runs_over_a_bad_line_end_with_the_bits_of_the_simulation(tmp_path: Path) -> None:
    """Nobody may be missing: a round that may go on without a site does so if its line was cut just before it."""
    records = trial_records()
    with trial_network(records, tmp_path) as network:
        far = Distance(network.link.port, cuts=12)
        with far_away(network, far):
            for name, trust in {"masked": MASKED, "open": OPEN}.items():
                (tmp_path / "study.toml").write_text(text(dropouts=0, rounds=8).replace("[trust]", trust))
                study = read_study_without_data(tmp_path / "study.toml")
                out, before = tmp_path / name, far.cut
                with network.carrier() as carrier:
                    federated(study, out, network.deployment, carrier, Held(), trace=tmp_path / "trace")
                assert far.cut >= before + 3
                assert released(out).tobytes() == simulated(out, records)[0].tobytes()
                assert "A round on its way" in (out / "report.html").read_text()
                run = certify(out, "0").run
                for site in network.deployment.cards:
                    with closing(sqlite3.connect(network.records / site / "ledger.sqlite")) as books:
                        kinds = books.execute("SELECT kind FROM entries WHERE run = ? ORDER BY sequence", [run])
                        assert kinds.fetchall() == [("charge",), ("release",)]


def wide_records(features: int = 20_000) -> Records:
    """Records of six clients with so many features that a question takes a seventh of a second on the line."""
    rows = np.random.default_rng(0).normal(size=(60, features))
    rows /= 1.01 * np.linalg.norm(rows, axis=1)[:, None]
    owner = np.repeat(np.arange(6), 10).astype(np.int64)
    targets = (rows[:, 0] > 0).astype(np.float64)
    return Records(features=rows, targets=targets, owner=owner, clients=6, bound=1.0, classes=2)


def test_a_round_takes_the_round_trips_that_its_exchanges_need_and_no_other(tmp_path: Path) -> None:
    """The least is one in the open and behind masks, two where one site may be missing, three where they sign who is.

    A question comes down with the answer to a request that waits at the link, and its answer goes up with the next one.
    """
    records, rounds = wide_records(), 4
    cases = {
        "open": (1, 2, OPEN),
        "masked": (1, 0, MASKED),
        "missing": (2, 2, MASKED),
        "signed": (3, 2, MASKED + '\nidentities = "sites"'),
    }
    with trial_network(records, tmp_path) as network:
        far = Distance(network.link.port, delay=0.1)
        with far_away(network, far):
            for name, (least, dropouts, trust) in cases.items():
                (tmp_path / "study.toml").write_text(text(dropouts=dropouts, rounds=rounds).replace("[trust]", trust))
                study = read_study_without_data(tmp_path / "study.toml")
                seen: list[tuple[float, int, int]] = []
                with network.carrier() as carrier:
                    federated(
                        study,
                        tmp_path / name,
                        network.deployment,
                        carrier,
                        Held(),
                        watch=lambda _, seen=seen: seen.append((time.monotonic(), far.trips, far.carried)),
                    )
                trips = (seen[-1][1] - seen[0][1]) / (rounds - 1) / 3
                line = (seen[-1][2] - seen[0][2]) / (rounds - 1) / 3 / far.bandwidth
                took = median(after[0] - before[0] for before, after in pairwise(seen))
                print(f"{name}: {trips:.2f} round trips, {took:.2f} s, of which {line:.2f} s for bytes")
                assert trips < least + 0.5
                assert took - line < (least + 2) * 2 * 1.25 * far.delay
                assert released(tmp_path / name).tobytes() == simulated(tmp_path / name, records)[0].tobytes()
