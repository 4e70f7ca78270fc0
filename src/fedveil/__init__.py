"""fedveil: train across many data holders, release only the final model, certify its privacy."""
