"""The certificate of a run, recomputed from the run's records alone, with everything it assumes."""
