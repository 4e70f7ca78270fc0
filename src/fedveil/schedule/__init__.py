"""Step sizes, batches, passes and noise designed for a target, from public quantities only."""

from fedveil.schedule.designed import Calibrator as Calibrator
from fedveil.schedule.designed import Designed as Designed
from fedveil.schedule.designed import Row as Row
from fedveil.schedule.designed import design as design
from fedveil.schedule.problem import Problem as Problem
from fedveil.schedule.problem import Wishes as Wishes
