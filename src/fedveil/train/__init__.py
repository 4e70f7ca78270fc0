"""Training: what a round does to the model, its noise, and the order of the records."""
