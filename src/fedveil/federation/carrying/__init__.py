"""What every engine needs that carries sealed envelopes between an aggregator and its sites."""
