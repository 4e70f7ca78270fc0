"""A site: it keeps its own data, noise and ledger, and answers what the agreed plan asks."""
