"""Sums that nobody sees into: the seam of adding up, masks, homomorphic encryption, and smaller messages."""
