"""The key that opens encrypted sums, kept by its holder during the run and destroyed after it."""

from pathlib import Path

from fedveil.core.errors import BadValue
from fedveil.engine.files import write_atomically
from fedveil.federation.agreements import Carried, all_floors, length_of, parameters_of
from fedveil.sums.homomorphic.roles import Decryptor, Keys, make_keys
from fedveil.wire.content import Content
from fedveil.wire.envelope import Refused


def made_at(path: Path, plan: Carried) -> Keys:
    """Return the run's key; make it if it does not exist."""
    if not path.exists():
        try:
            made = make_keys(parameters_of(plan))
        except BadValue as error:
            raise Refused("no-encryption") from error
        write_atomically(path, written(made))
    return keys_at(path)


def keys_at(path: Path) -> Keys:
    """Return the key that was kept."""
    try:
        return read_keys(path.read_bytes())
    except FileNotFoundError as error:
        raise Refused("no-key") from error


def written(keys: Keys) -> bytes:
    """Return the private and the public key as bytes, for a private file or a sealed envelope."""
    return Content(blocks={"public": keys.public, "secret": keys.secret}).write()


def read_keys(data: bytes) -> Keys:
    """Read the keys that :func:`written` wrote."""
    blocks = Content.read(data).blocks
    if set(blocks) != {"public", "secret"}:
        raise Refused("malformed")
    return Keys(blocks["public"], blocks["secret"])


def opened_sum(plan: Carried, keys: Keys, turn: int, message: bytes) -> Content:
    """Open the sum of a round; refuse if fewer clients are in it than the plan needs.

    The caller must make sure that only one sum of a round is opened.
    """
    floors = all_floors(plan)
    if not 0 <= turn < len(floors):
        raise Refused("no-such-round")
    holder = Decryptor.open(keys, parameters_of(plan), least=floors[turn][1])
    try:
        _, result = holder.decrypt(message, turn=turn, size=length_of(plan, turn))
    except BadValue as error:
        raise Refused("no-sum") from error
    return Content(values={"clients": list(result.survivors)}, rows={"total": result.total})
