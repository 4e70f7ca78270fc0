"""What is done to data and what is promised about it, as frozen values: mechanisms, guarantees, targets, trust."""
