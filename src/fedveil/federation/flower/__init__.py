"""Flower's deployment engine as a relay: it carries sealed envelopes and is trusted with nothing else."""
