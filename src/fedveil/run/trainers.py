"""Which trainer carries out which method; hidden training, which can stop and go on, is in simulate.py."""

from fedveil.train.trained import Trainer

TRAINERS: dict[str, Trainer] = {}
