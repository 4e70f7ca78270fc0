"""The plans that sites carry out together: of training, or of any stage of noisy sums."""

from fedveil.planning.plan import AnyPlan

Carried = AnyPlan
