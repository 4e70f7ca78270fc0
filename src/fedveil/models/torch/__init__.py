"""Torch modules as models: the loss that plans name, and behind it what loads PyTorch when it is first needed."""
