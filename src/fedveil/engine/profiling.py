"""Carry out a profile in a folder, as a job that measures and trains nothing (fedveil.engine.alone)."""

from pathlib import Path

import numpy as np

from fedveil.engine.alone import Job, conduct_alone
from fedveil.engine.system import System
from fedveil.noise.entropy import Entropy
from fedveil.planning.study import Books
from fedveil.stages.measuring import Measurer
from fedveil.stages.profile.budget import profile_plan
from fedveil.stages.profile.found import FILE, Profile
from fedveil.stages.profile.learn import profile_of
from fedveil.stages.profile.request import ProfileData, ProfileRequest


def conduct_profile(
    request: ProfileRequest,
    data: ProfileData,
    folder: Path,
    *,
    books: Books | None = None,
    resume: bool = False,
    system: System,
) -> Profile:
    """Measure the profile in ``folder`` and return it; what may be published is on the disk when this returns.

    ``books``: where it is charged and under which caps; None: in the books beside the source.
    """
    plan = profile_plan(request.name, data.shape, request.target, data.sizes, request.places)

    def measure(entropy: Entropy) -> bytes:
        by = Measurer(
            owner=data.owner,
            clients=data.clients,
            present=np.arange(data.owner.size, dtype=np.int64),
            target=plan.target,
            entropy=entropy,
        )
        return profile_of(plan, data.columns, data.numbers, request.predicted, by).text().encode()

    job = Job(
        what="profile",
        file=FILE,
        plan=plan,
        source=request.source,
        base=request.base,
        books=books or Books(),
        fingerprint=data.fingerprint,
    )
    return Profile.read(conduct_alone(job, folder, measure, resume=resume, system=system))
