"""Rows of dpmm's AIM for a table of codes: ``python _dpmm_rows.py table.npz SEED rows.npy``.

Run by benchmarks/synthetic.py in an environment of its own, so nothing of fedveil is imported. All settings are dpmm's
defaults but two. Its documentation says that the default model of 80 MB takes many hours and offers smaller ones: here
2 MB, as many numbers as fedveil's model may hold. And a fit makes 100 steps a round, not 1000, from the model of the
round before, as it always does; the last one makes 300 more from there, where dpmm would make 1000 from nothing.
"""

import sys
import time
from typing import Any

import numpy as np
import pandas as pd
from dpmm.models.aim import AIMGM
from dpmm.models.base.mbi import FactoredInference

MEGABYTES, STEPS, LAST = 2, 100, 300


def main(table: str, seed: str, out: str) -> None:
    found = np.load(table)
    codes, names = found["codes"], [f"c{k}" for k in range(found["sizes"].size)]
    model = AIMGM(epsilon=1.0, delta=1e-5, max_model_size=MEGABYTES, n_jobs=1)
    model.set_domain({name: int(size) for name, size in zip(names, found["sizes"], strict=True)})
    model.set_random_state(np.random.RandomState(int(seed)))
    shorten()
    model.fit(pd.DataFrame(codes, columns=names))
    rows = model.generate(n_records=len(codes))[names].to_numpy()
    np.save(out, rows.astype(np.int64))
    print(f"{time.process_time():.0f}")


def shorten() -> None:
    """Fewer steps a fit; the last one begins where the last round ended."""
    whole, last = FactoredInference.estimate, []

    def estimate(self: Any, *given: Any, **more: Any) -> Any:
        if self.warm_start:  # of a round
            self.iters = STEPS
        else:
            self.warm_start, self.model, self.iters = True, last[-1], LAST
        last[:] = [whole(self, *given, **more)]
        return last[-1]

    FactoredInference.estimate = estimate


if __name__ == "__main__":
    main(*sys.argv[1:])
