"""Sums behind masks that survive dropouts: messages in, messages out; no socket, clock, disk or randomness."""
