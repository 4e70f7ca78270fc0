"""A whole study of a torch model through the command line, its module in the folder where the command runs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from commands import called

pytest.importorskip("torch", reason="PyTorch is not installed: pip install fedveil[torch]")

MODULE = """
from torch import nn

def make():
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))
"""
STUDY = """
[data]
source = "data.npz"
feature_bound = 2.0
intercept = 0.0
classes = 2
target = "y"
[data.held_out]
fraction = 0.2
public = true
[model]
kind = "torch"
module = "my_model:make"
clip = 1.0
radius = 8.0
[privacy]
epsilon = 8.0
delta = 1e-4
[schedule]
step_size = 1.0
batch = 100
passes = 20
[report]
baselines = true
"""


def fedveil(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from fedveil.cli import main; main()", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target that no linear model predicts: the sign of a product."""
    folder = tmp_path_factory.mktemp("study")
    rows = np.random.default_rng(0).uniform(-1, 1, size=(2500, 3))
    np.savez(folder / "data.npz", X=rows, y=(rows[:, 0] * rows[:, 1] > 0).astype(np.int64))
    (folder / "my_model.py").write_text(MODULE, encoding="utf-8")
    (folder / "study.toml").write_text(STUDY, encoding="utf-8")
    done = fedveil(folder, "run", "study.toml", "--out", "results", "--module", "my_model:make")
    assert done.returncode == 0, done.stderr
    return folder


def test_a_network_learns_what_no_linear_model_can(folder: Path) -> None:
    metrics = json.loads((folder / "results" / "metrics.json").read_text(encoding="utf-8"))
    assert metrics["test"]["accuracy"] > 0.6
    assert set(metrics["baselines"]) == {"non-private", "centralised"}


def test_the_model_file_holds_the_start_and_the_way_from_there(folder: Path) -> None:
    found = np.load(folder / "results" / "model.npz", allow_pickle=False)
    assert set(found.files) == {"kind", "parameters", "start"}
    assert found["parameters"].shape == found["start"].shape == (50,)


def test_it_predicts_where_its_module_is_allowed(folder: Path) -> None:
    refused = called("predict", "results", "data.npz", "--out", "p.csv", cwd=folder)
    assert refused.returncode == 2
    assert "--module my_model:make" in refused.stderr
    words = ("predict", "results", "data.npz", "--out", "p.csv", "--module", "my_model:make", "--probabilities")
    done = fedveil(folder, *words)
    assert done.returncode == 0, done.stderr
    found = np.genfromtxt(folder / "p.csv", delimiter=",", skip_header=1)
    assert found.shape == (2500, 3)
    assert found[:, 0] + found[:, 1] == pytest.approx(np.ones(2500))
    assert np.mean(found[:, 2] == np.load(folder / "data.npz")["y"]) > 0.6
    elsewhere = MODULE.replace("from torch import nn", "import torch\nfrom torch import nn\ntorch.manual_seed(77)")
    (folder / "my_model.py").write_text(elsewhere, encoding="utf-8")
    assert fedveil(folder, *words).returncode == 0
    again = np.genfromtxt(folder / "p.csv", delimiter=",", skip_header=1)
    assert again == pytest.approx(found, abs=1e-9), "the model is what was released, wherever its module begins"
    (folder / "my_model.py").write_text(MODULE, encoding="utf-8")
    exported = called("export", "results", "--to", "json", cwd=folder)
    assert (exported.returncode, "must be linear" in exported.stderr) == (2, True)


def test_a_stack_of_layers_becomes_an_onnx_graph_with_the_same_numbers(folder: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    refused = called("export", "results", "--to", "onnx", cwd=folder)
    assert (refused.returncode, "--module my_model:make" in refused.stderr) == (2, True)
    done = called("export", "results", "--to", "onnx", "--module", "my_model:make", "--out", "m.onnx", cwd=folder)
    assert done.returncode == 0, done.stderr
    words = ("predict", "results", "data.npz", "--out", "q.csv", "--module", "my_model:make", "--probabilities")
    assert called(*words, cwd=folder).returncode == 0
    ours = np.genfromtxt(folder / "q.csv", delimiter=",", skip_header=1)
    rows = np.load(folder / "data.npz")["X"]
    session = onnxruntime.InferenceSession(folder / "m.onnx")
    names = [one.name for one in session.get_inputs()]
    found = session.run(None, {name: rows[:, [index]] for index, name in enumerate(names)})
    assert np.abs(found[1] - ours[:, :2]).max() < 1e-6
    assert [float(word) for word in found[0]] == ours[:, 2].tolist()


def test_certifying_neither_needs_nor_runs_the_module(folder: Path) -> None:
    (folder / "my_model.py").rename(folder / "gone.py")
    done = fedveil(folder, "certify", "results")
    assert done.returncode == 0, done.stderr
    refused = fedveil(folder, "plan", "study.toml", "--module", "my_model:make")
    assert refused.returncode == 2
    assert refused.stderr.startswith("fedveil: model.module must be")
