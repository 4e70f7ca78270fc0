"""Where records come from: sources, one fixed public rule for their features, the split among clients."""
