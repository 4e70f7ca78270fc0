"""How good a model is on records that are not public: noisy counts, charged with the run that trained it."""
