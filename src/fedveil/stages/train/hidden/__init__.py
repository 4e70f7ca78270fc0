"""Hidden training: noisy projected gradient steps of which only the last model is released."""
