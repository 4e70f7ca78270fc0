"""Secret randomness by address, and noise on a power-of-two grid made from it."""
