"""What crosses between an aggregator and its sites: keys, sealed envelopes and their contents; pure, no sockets."""
