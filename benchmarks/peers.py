"""The hidden simulation against two simulators of federated learning on one job: CPU time a client and round.

The job: 10,000 clients of 10 records with 100 features, logistic regression, cohorts of 1000 clients, one full gradient
step a client, its update bounded, noise added to the average. A peer that is not installed gives no row, and stderr
says so. Starting up, importing and cutting the data into clients are charged to nobody; dealing is charged to fedveil.
"""

import logging
import os
import subprocess
import sys
import time
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import Row
from benchmarks.simulation import CLIENTS, COHORT, EACH, FEATURES, problem
from fedveil.engine.train import train
from fedveil.noise.entropy import Entropy

# One pass, where laying out the records is paid for by few rounds, and as many as benchmarks.simulation runs.
PASSES = (1, 5)
REPEATS = 8
PFL_ROUNDS = 5  # its cost is per client, so more rounds would only take longer
FLOWER_CLIENTS, FLOWER_ROUNDS = 100, 6  # a client costs Flower two to four times as much in a round of 1000


def fedveil_seconds(passes: int) -> float:
    """CPU a client and round, from the records to the last model."""
    plan, records = problem(CLIENTS, EACH, FEATURES, COHORT, passes)
    began = time.process_time()
    train(plan, records, Entropy.from_seed(0))
    return (time.process_time() - began) / (plan.run.total * COHORT)


@cache
def client_data(clients: int) -> tuple[np.ndarray, np.ndarray]:
    """Features and labels by client, then by record."""
    _, records = problem(clients, EACH, FEATURES, clients // 10, 1)
    return records.features.reshape(clients, EACH, FEATURES), records.targets.reshape(clients, EACH)


def gradient(model: np.ndarray, rows: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """One client's work, the same lines for both peers."""
    return (1.0 / (1.0 + np.exp(-(rows @ model))) - labels) @ rows / labels.size


def exact_average(model: np.ndarray, clients: range) -> np.ndarray:
    """What a round without noise averages; clients are of one size."""
    rows, labels = (part[clients.start : clients.stop] for part in client_data(CLIENTS))
    return gradient(model, rows.reshape(-1, FEATURES), labels.ravel())


def pfl_model(noise: float, rounds: int) -> tuple[np.ndarray, float]:
    """The model, and CPU a client and round.

    pfl's averaging has no numpy step of its own, so the step is put into it, with the least a user can cost: nothing is
    evaluated, copied back or reported. The rest is stock, in one process: a federated dataset from slices, users in
    line (the cheapest sampler), and the Gaussian mechanism applied centrally, which bounds each user's update and adds
    noise to the sum. Most of the time the stock dataset seeds numpy anew for each user; a dataset class of one's own,
    for users who draw nothing, could leave that out and would take about a third of the time.
    """
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam.base import ModelHyperParams
    from pfl.metrics import Metrics
    from pfl.model.base import Model
    from pfl.privacy.gaussian_mechanism import GaussianMechanism
    from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism
    from pfl.stats import MappedVectorStatistics

    class Logistic(Model):
        weights = np.zeros(FEATURES)

        def apply_model_update(self, statistics: Any) -> Any:
            self.weights = self.weights - statistics["weights"]
            return self, Metrics()

    class OneStep(FederatedAveraging):
        def simulate_one_user(self, model: Any, user_dataset: Any, central_context: Any) -> Any:
            return MappedVectorStatistics({"weights": gradient(model.weights, *user_dataset.raw_data)}), Metrics()

    slices = dict(enumerate(zip(*client_data(CLIENTS), strict=True)))
    data = FederatedDataset.from_slices(slices, get_user_sampler("minimize_reuse", list(slices)))
    mechanism = CentrallyAppliedPrivacyMechanism(GaussianMechanism(1.0, noise))
    backend, model = SimulatedBackend(data, data, postprocessors=[mechanism]), Logistic()
    schedule = NNAlgorithmParams(rounds, rounds, COHORT, None)
    began = time.process_time()
    OneStep().run(schedule, backend, model, ModelHyperParams(), send_metrics_to_platform=False)
    return model.weights, (time.process_time() - began) / (rounds * COHORT)


def check_pfl() -> None:
    """Without noise, pfl's model is that of the plain rounds."""
    plain = np.zeros(FEATURES)
    for turn in range(2):
        plain = plain - exact_average(plain, range(turn * COHORT, (turn + 1) * COHORT))
    assert np.allclose(pfl_model(0.0, 2)[0], plain)


def flower_reply(message: Any, context: Any) -> Any:
    """A client of Flower; at the top of a module, so that Ray sends its name and not its code with every call."""
    from flwr.app import ArrayRecord, Message, RecordDict

    rows, labels = (part[context.node_config["partition-id"]] for part in client_data(CLIENTS))
    update = gradient(message.content["model"].to_numpy_ndarrays()[0], rows, labels)
    return Message(content=RecordDict({"update": ArrayRecord([update])}), reply_to=message)


def tree_seconds() -> float:
    """CPU time so far of this process and all that descend from it: Ray's servers and workers too."""
    parent, spent = {}, {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it ended just now
            continue
        parent[int(stat.parent.name)] = int(fields[1])
        spent[int(stat.parent.name)] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    family = {os.getpid()}
    while more := {child for child, above in parent.items() if above in family} - family:
        family |= more
    return sum(spent[member] for member in family)


def flower_seconds() -> float:
    """CPU a client and round, least of the rounds after the first, in which Ray's workers start.

    The server sends and receives by itself, with no strategy and so no evaluation, metrics or bookkeeping of one. As
    many workers as cores, a core each, the fastest here. Only the clients of a round exist, as Flower asks every client
    that exists for messages again and again. Nothing is clipped, which the rows' norms make needless. No reports home.
    """
    from flwr.app import ArrayRecord, Message, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp
    from flwr.simulation import run_simulation

    clients, server, rounds = ClientApp(), ServerApp(), []
    clients.train()(flower_reply)
    generator = np.random.default_rng(0)

    @server.main()
    def train(grid: Any, _: Any) -> None:
        while len(nodes := list(grid.get_node_ids())) < FLOWER_CLIENTS:
            time.sleep(0.1)
        model = np.zeros(FEATURES)
        for _turn in range(FLOWER_ROUNDS):
            expected = exact_average(model, range(FLOWER_CLIENTS))
            began = tree_seconds()
            content = RecordDict({"model": ArrayRecord([model])})
            sent = [Message(content=content, message_type="train", dst_node_id=node) for node in nodes]
            updates = [reply.content["update"].to_numpy_ndarrays()[0] for reply in grid.send_and_receive(sent)]
            average = np.mean(updates, axis=0)
            model = model - average + generator.normal(0.0, 1 / FLOWER_CLIENTS, FEATURES)
            rounds.append((tree_seconds() - began) / FLOWER_CLIENTS)
            assert len(updates) == FLOWER_CLIENTS
            assert np.allclose(average, expected)

    logging.getLogger("flwr").setLevel(logging.ERROR)
    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {"log_to_driver": False}}
    run_simulation(server, clients, FLOWER_CLIENTS, backend_config=resources)
    return min(rounds[1:])


def flower_apart() -> float | None:
    """Flower in a process of its own, so that Ray leaves nothing behind in this one; None, and why, if it fails."""
    script = "from benchmarks import peers; print('seconds', peers.flower_seconds())"
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=os.environ | quiet)
    if done.returncode:
        print(f"peers: no row for Flower, whose simulation failed:\n{done.stderr[-3000:]}", file=sys.stderr)
        return None
    return float(done.stdout.rpartition("seconds ")[2])


def installed(*packages: str) -> bool:
    """Whether a peer can be compared with; if not, stderr says so."""
    absent = [name for name in packages if find_spec(name) is None]
    if absent:
        print(f"peers: no row for {packages[0]}: not installed here: {', '.join(absent)}", file=sys.stderr)
    return not absent


def rows(name: str, times: int, ours: dict[int, float], theirs: float | None) -> list[Row]:
    return [
        Row(
            f"CPU a client over {name}'s, {passes * CLIENTS // COHORT} rounds",
            1 / times,
            mine / theirs,
            f"{1e6 * mine:.2f} us / {1e6 * theirs:.0f} us: {theirs / mine:.0f} times as many clients a second",
        )
        for passes, mine in (ours.items() if theirs else ())
    ]


def run() -> list[Row]:
    """Rows for the peers that are here; fedveil and pfl take turns, so that a busy machine hurts both alike."""
    with_pfl, with_flower = installed("pfl"), installed("flwr", "ray")
    if with_pfl:
        check_pfl()
    ours, pfl = dict.fromkeys(PASSES, np.inf), np.inf
    for _ in range(REPEATS if with_pfl or with_flower else 0):
        ours = {passes: min(best, fedveil_seconds(passes)) for passes, best in ours.items()}
        pfl = min(pfl, pfl_model(1.0, PFL_ROUNDS)[1]) if with_pfl else pfl
    found = rows(f"pfl {version('pfl')}", 30, ours, pfl) if with_pfl else []
    return found + (rows(f"Flower {version('flwr')}", 500, ours, flower_apart()) if with_flower else [])
