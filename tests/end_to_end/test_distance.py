"""Sites far away: every byte takes its time, and connections are cut; the run ends with the same bits, charged once."""

import asyncio
import random
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from flower_trials import released, simulated, text, trial_network, trial_records

from fedveil.certificate.certify import certify
from fedveil.federation.aggregator.consortium import Held
from fedveil.federation.flower.network import start_node
from fedveil.jobs.remote import federated
from fedveil.planning.study import read_study_without_data

pytest.importorskip("flwr")


@dataclass
class Distance:
    """A proxy before the link: ``delay`` seconds each way, up to half as much again, and cuts after some chunks.

    A chunk is what one read returns; about one of ``cuts`` ends its connection, in the middle of whatever it carried.
    """

    target: int
    delay: float = 0.05
    cuts: int = 12
    port: int = 0
    cut: int = 0
    _writers: list[asyncio.StreamWriter] = field(default_factory=list)
    _random: random.Random = field(default_factory=lambda: random.Random(7))

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, both: list[asyncio.StreamWriter]
    ) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            while data := await reader.read(2**16):
                await asyncio.sleep(self.delay * (1 + self._random.random() / 2))
                if self._random.randrange(self.cuts) == 0:
                    self.cut += 1
                    break
                writer.write(data)
                await writer.drain()
        for one in both:
            one.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            other_reader, other_writer = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.close()
            return
        both = [writer, other_writer]
        self._writers += both
        await asyncio.gather(self._pump(reader, other_writer, both), self._pump(other_reader, writer, both))

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


def test_a_masked_run_over_a_bad_line_ends_with_the_bits_of_the_simulation(tmp_path: Path) -> None:
    records = trial_records()
    masked = text(dropouts=2, rounds=8).replace("[trust]", '[trust]\nserver = "secure-aggregation"')
    (tmp_path / "study.toml").write_text(masked)
    study = read_study_without_data(tmp_path / "study.toml")
    with trial_network(records, tmp_path) as network:
        far = Distance(network.link.port)
        with far.open():
            link = replace(network.link, port=far.port)
            for site, node in list(network.nodes.items()):
                node.stop()
                key = network.place(site) / "node.key"
                network.nodes[site] = start_node(network.processes, link, site, key, network.door(site))
            with network.carrier() as carrier:
                federated(study, tmp_path / "out", network.deployment, carrier, Held(), trace=tmp_path / "trace")
        assert far.cut >= 3
        assert released(tmp_path / "out").tobytes() == simulated(tmp_path / "out", records)[0].tobytes()
        assert "A round on its way" in (tmp_path / "out" / "report.html").read_text()
        run = certify(tmp_path / "out", "0").run
        for site in network.deployment.cards:
            with closing(sqlite3.connect(network.records / site / "ledger.sqlite")) as books:
                kinds = books.execute("SELECT kind FROM entries WHERE run = ? ORDER BY sequence", [run]).fetchall()
            assert kinds == [("charge",), ("release",)]
