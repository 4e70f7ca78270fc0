"""Sums that nobody sees into: integers in, integers out; messages in, messages out; no sockets, no clock."""
