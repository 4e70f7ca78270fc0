"""A generator of synthetic records: noisy marginals of a table, charged like a run, and a graphical model of them."""
