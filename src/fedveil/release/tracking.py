"""Log a finished run to MLflow: what the run released, and nothing else.

Needs the extra ``fedveil[mlflow]``. Parameters are those of the plan, metrics the epsilon of every observer and the
quality that the run published; artifacts are the files of its folder, without ``private``.
"""

import os
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedveil.core.errors import BadValue, FedveilError
from fedveil.core.strict_json import read_object

_LONGEST = 500  # characters of a parameter; longer ones are in the artifact plan.toml


def load_mlflow() -> Any:
    """Return the package, or say how to install it; called before a run, so that nothing is charged in vain."""
    for name in ("MLFLOW_DISABLE_TELEMETRY", "DO_NOT_TRACK"):  # no word about a private run leaves unasked
        os.environ.setdefault(name, "true")
    try:
        import mlflow
    except ImportError as error:
        raise BadValue("--mlflow needs the package mlflow-skinny: install the extra fedveil[mlflow].") from error
    return mlflow


def log_to_mlflow(folder: Path, experiment: str, tracking: str | None = None) -> str:
    """Log the run in ``folder``, and return the identifier that MLflow gave it.

    ``tracking``: the address of the tracking server or database; without it, MLFLOW_TRACKING_URI as usual.
    """
    mlflow = load_mlflow()
    texts = {name: (folder / name).read_text("utf-8") for name in ("plan.toml", "certificate.json", "metrics.json")}
    plan = tomllib.loads(texts["plan.toml"])
    certificate = read_object(texts["certificate.json"], "certificate.json")
    metrics = {**_epsilons(certificate), **dict(_numbers(read_object(texts["metrics.json"], "metrics.json")))}
    try:
        client = mlflow.MlflowClient(tracking_uri=tracking)
        known = client.get_experiment_by_name(experiment)
        place = client.create_experiment(experiment) if known is None else known.experiment_id
        tags = {"fedveil.version": str(certificate["version"]), "fedveil.plan": str(certificate["plan"])}
        run: str = client.create_run(place, run_name=str(plan["plan"]["name"]), tags=tags).info.run_id
        for name, value in _scalars(plan):
            client.log_param(run, name, value)
        for name, value in metrics.items():
            client.log_metric(run, name, value)
        for path in sorted(folder.iterdir()):
            if path.is_file():  # a folder here is `private`
                client.log_artifact(run, str(path))
        client.set_terminated(run)
    except (mlflow.exceptions.MlflowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise FedveilError(f"The run in {folder} is complete, but MLflow did not take it: {reason}") from error
    return run


def _scalars(tables: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the settings of nested tables by their dotted names; lists and long texts stay in the file."""
    for name, value in tables.items():
        if isinstance(value, Mapping):
            yield from _scalars(value, f"{before}{name}.")
        elif isinstance(value, str | bool | int | float) and len(str(value)) <= _LONGEST:
            yield f"{before}{name}", value


def _epsilons(certificate: Mapping[str, Any]) -> dict[str, float]:
    """Return epsilon for every observer that is promised one, and delta."""
    rows = certificate["guarantees"]
    finite = {f"epsilon.{row['adversary']}": row["epsilon"] for row in rows if row["epsilon"] is not None}
    return {**finite, "delta": rows[0]["delta"]}


def _numbers(metrics: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the published numbers of quality, in MLflow's alphabet for names."""
    for name, value in _scalars({key: metrics[key] for key in ("test", "evaluation") if metrics.get(key)}):
        if not isinstance(value, str | bool):
            yield "".join(c if c.isalnum() or c in "_-. /" else "_" for c in name), float(value)
