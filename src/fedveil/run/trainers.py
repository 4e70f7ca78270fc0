"""Which trainer carries out which method; hidden training, which can stop and go on, is in simulate.py."""

from fedveil.train.dpsgd import train_dpsgd
from fedveil.train.fedavg import train_fedavg
from fedveil.train.simfl import train_simfl
from fedveil.train.trained import Trainer

TRAINERS: dict[str, Trainer] = {"dpsgd": train_dpsgd, "fedavg": train_fedavg, "simfl": train_simfl}
