"""From a study to a plan: designs, one budget shared among the stages, selection, and what a plan promises."""
