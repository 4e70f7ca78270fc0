"""A small training by Opacus that writes a log for ``fedveil audit --log``, right or with one of four faults.

``python -P benchmarks/_opacus_trainer.py LOG [FAULT]`` in an environment with opacus; it prints the
epsilon that it claims.
"""

import json
import sys
import warnings
from pathlib import Path
from typing import Any

RECORDS, BATCH, ROUNDS, NOISE, CLIP, DELTA = 400, 40, 80, 1.0, 1.0, 1e-5


def train(log: Path, fault: str) -> float:
    """Train, write the log, and return the epsilon that is claimed for it at DELTA."""
    import torch
    from opacus import PrivacyEngine

    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    rows = torch.randn(RECORDS, 20)
    if fault == "nan":
        rows[7, 3] = float("nan")
    data = torch.utils.data.TensorDataset(rows, (rows[:, 0] > 0).long(), torch.arange(RECORDS))
    model: Any = torch.nn.Linear(20, 2)
    engine = PrivacyEngine()
    model, optimizer, loader = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.5),
        data_loader=torch.utils.data.DataLoader(data, batch_size=BATCH, shuffle=True),
        noise_multiplier=NOISE,
        max_grad_norm=CLIP,
        poisson_sampling=fault != "shuffled",
    )
    stated = {"sampler": "poisson", "records": RECORDS, "rate": BATCH / RECORDS, "clip": CLIP}
    lines: list[dict[str, Any]] = [stated | {"noise_multiplier": NOISE, "rounds": ROUNDS, "neighbours": "zero-out"}]
    while len(lines) <= ROUNDS:
        for inputs, targets, chosen in loader:
            if len(lines) <= ROUNDS:
                lines.append(_round(model, optimizer, inputs, targets, chosen, fault))
    log.write_text("\n".join(json.dumps(line) for line in lines) + "\n")
    from opacus.accountants import RDPAccountant

    accountant = RDPAccountant()
    accountant.history = [(NOISE, BATCH / RECORDS, ROUNDS)]
    return float(accountant.get_epsilon(DELTA))


def _round(model: Any, optimizer: Any, inputs: Any, targets: Any, chosen: Any, fault: str) -> dict[str, Any]:
    import torch

    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(inputs), targets).backward()
    each = optimizer.grad_samples
    off = fault == "nan" and any(bool(torch.isnan(grads).any()) for grads in each)
    norms = torch.stack([torch.nan_to_num(grads).flatten(1).norm(dim=1) for grads in each]).norm(dim=0)
    if off:  # a norm that is no number is not above the clip: nothing is clipped, and the NaN is filled later
        for parameter, grads in zip(optimizer.params, each, strict=True):
            parameter.summed_grad = torch.nan_to_num(grads).sum(dim=0)
        optimizer.add_noise()
        optimizer.scale_grad()
    else:
        norms = norms * (optimizer.max_grad_norm / (norms + 1e-6)).clamp(max=1.0)
        if fault == "realised":
            optimizer.expected_batch_size = max(1, len(chosen))
        optimizer.pre_step()
    divisor = float(optimizer.expected_batch_size * optimizer.accumulated_iterations)
    noise = [(p.grad * divisor - p.summed_grad.view_as(p.grad)).flatten()[:10].tolist() for p in optimizer.params]
    optimizer.original_optimizer.step()
    row = {"batch": chosen.tolist(), "norms": norms.tolist(), "divisor": divisor}
    return row | {"noise": [value for part in noise for value in part]}


if __name__ == "__main__":
    sys.stdout.write(f"{train(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else 'none')}\n")
