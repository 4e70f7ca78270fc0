"""Smaller messages: rotation, rounding, sparsity, bits. Pure functions; what each does to privacy is stated."""
