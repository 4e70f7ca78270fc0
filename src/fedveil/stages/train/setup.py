"""What a method is asked about: the shape of the data, the model, the target, and whom the clients trust."""

from dataclasses import dataclass

from fedveil.data.records import DataShape
from fedveil.models.spec import ModelPlan
from fedveil.privacy.target import Target
from fedveil.privacy.trust import CENTRAL, Trust


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Public quantities only. A plan has one, and so has a task that is still to be planned."""

    data: DataShape
    model: ModelPlan
    target: Target
    trust: Trust = CENTRAL

    @property
    def units(self) -> int:
        """Number of units (records or clients) to protect."""
        return self.data.clients if self.target.unit == "client" else self.data.records

    @property
    def held(self) -> int:
        """Number of units that one client holds at most."""
        return 1 if self.target.unit == "client" else self.data.largest_client

    @property
    def dimension(self) -> int:
        """Number of model parameters."""
        return self.model.loss.size(self.data.features)
