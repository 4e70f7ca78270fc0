"""NVIDIA FLARE as a relay: it carries sealed envelopes and is trusted with nothing else."""
