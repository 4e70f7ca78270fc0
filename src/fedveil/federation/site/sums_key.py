"""The key that opens encrypted sums: with whoever holds it while the run goes on, and nowhere after; what it opens."""

from pathlib import Path

from fedveil.errors import BadValue
from fedveil.federation.agreements.encrypted import parameters_of
from fedveil.plan import Plan
from fedveil.run.files import write_atomically
from fedveil.run.sums import floors_of
from fedveil.sums.homomorphic.roles import Decryptor, Keys, make_keys
from fedveil.wire.content import Content
from fedveil.wire.envelope import Refused


def made_at(path: Path, plan: Plan) -> Keys:
    """The run's key, made once."""
    if not path.exists():
        try:
            made = make_keys(parameters_of(plan))
        except BadValue as error:
            raise Refused("no-encryption") from error
        write_atomically(path, written(made))
    return keys_at(path)


def keys_at(path: Path) -> Keys:
    """As it was kept."""
    try:
        return read_keys(path.read_bytes())
    except FileNotFoundError as error:
        raise Refused("no-key") from error


def written(keys: Keys) -> bytes:
    """Both halves, for a private file or a sealed envelope."""
    return Content(blocks={"public": keys.public, "secret": keys.secret}).write()


def read_keys(data: bytes) -> Keys:
    """What :func:`written` wrote."""
    blocks = Content.read(data).blocks
    if set(blocks) != {"public", "secret"}:
        raise Refused("malformed")
    return Keys(blocks["public"], blocks["secret"])


def opened_sum(plan: Plan, keys: Keys, turn: int, message: bytes) -> Content:
    """The sum of a round, of no fewer clients than the plan needs; the caller sees to it that it is one, ever."""
    floors = floors_of(plan)
    if not 0 <= turn < len(floors):
        raise Refused("no-such-round")
    holder = Decryptor.open(keys, parameters_of(plan), least=floors[turn][1])
    try:
        _, found = holder.decrypt(message, turn=turn, size=plan.dimension)
    except BadValue as error:
        raise Refused("no-sum") from error
    return Content(values={"clients": list(found.survivors)}, rows={"total": found.total})
