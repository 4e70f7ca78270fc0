"""A plan carried out across machines: what both sides agree on, the aggregator, the sites, deployment, Flower."""
