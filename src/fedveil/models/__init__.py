"""Losses with derived constants, and clipped gradients of whole batches."""
