"""Masked sums that survive dropouts: messages in, messages out; no sockets, clock, disk or randomness here."""
