"""Messages between an aggregator and its sites: keys, sealed envelopes and their contents; no sockets here."""
