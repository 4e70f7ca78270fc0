"""A run for those who must approve it: the model card, the entry of a public registry, a regulator's questions."""
