"""Secure sums: the interface for adding up, masks, homomorphic encryption, and smaller messages."""
