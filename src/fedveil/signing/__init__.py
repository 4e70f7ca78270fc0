"""Signatures of results, and the keys that make and check them."""
