"""Step sizes, batches, passes and noise designed for a target, from public quantities only."""

from fedveil.stages.train.hidden.schedule.designed import Calibrator as Calibrator
from fedveil.stages.train.hidden.schedule.designed import Designed as Designed
from fedveil.stages.train.hidden.schedule.designed import Row as Row
from fedveil.stages.train.hidden.schedule.designed import design as design
from fedveil.stages.train.hidden.schedule.designed import least_risk as least_risk
from fedveil.stages.train.hidden.schedule.problem import Order as Order
from fedveil.stages.train.hidden.schedule.problem import Problem as Problem
