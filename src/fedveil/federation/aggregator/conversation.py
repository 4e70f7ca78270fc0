"""What an aggregator does with its sites in every run: learn who is there, propose a plan, ask round by round, end.

A run of training and a generator share it (federate.py, generate.py). The question of a round is determined by the
checkpoint that was on the disk before, so a restarted aggregator asks the same question, and a site gives the same
answer.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Any, Final, final

from fedveil.core.errors import require
from fedveil.core.files import public_folder
from fedveil.core.values import Indices
from fedveil.engine.ending import destroy_secrets
from fedveil.engine.files import private_folder, sole_use, write_atomically
from fedveil.engine.system import Progress, System
from fedveil.federation.aggregator.across import Across
from fedveil.federation.aggregator.consortium import Described, consortium, described_by
from fedveil.federation.aggregator.post import Post
from fedveil.federation.aggregator.round_sums import RoundSums
from fedveil.federation.aggregator.trace import STATUS
from fedveil.federation.aggregator.turn import ask_all, never
from fedveil.federation.agreements import Carried
from fedveil.ledger.costs import cost_of
from fedveil.noise.entropy import KEY_BYTES
from fedveil.planning.study import Books
from fedveil.stages.protocol import Consortium
from fedveil.wire.content import Content
from fedveil.wire.keys import Card

_ATTEMPT: Final = 2**32  # most envelopes that one start of the aggregator may send
_HELLO: Final = 120.0  # seconds in which sites must introduce themselves, before there is a plan
SECRETS: Final = ("checkpoint", "relayed", "masked", "encrypted", "windows", "questions", STATUS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """State of one start of an aggregator: the run's name and key, and the first number of its envelopes."""

    run: str
    key: bytes
    number: int


def check_folder(folder: Path, resume: bool) -> None:
    """Refuse to begin in a folder that holds a run; resuming begins one that was never begun, and charged nothing."""
    begun = (folder / "private" / "aggregator").exists() or (folder / "plan.toml").exists()
    hint = "Name another folder, or go on with --resume."
    require(resume or not begun, "--out", "be new", str(folder), hint)


def begin(folder: Path, resume: bool, random: Callable[[int], bytes]) -> Begun:
    """Draw the run's name and key once, and count the starts of the aggregator.

    The count is on the disk before the first envelope leaves.
    """
    check_folder(folder, resume)
    public_folder(folder)
    private = private_folder(folder / "private")
    with sole_use(private):  # leaves an aggregator that is running here alone
        return _begun(private, random)


def _begun(private: Path, random: Callable[[int], bytes]) -> Begun:
    path, starts = private / "aggregator", private / "starts"
    if not path.exists():
        write_atomically(path, random(16 + KEY_BYTES))
    content = path.read_bytes()
    require(len(content) == 16 + KEY_BYTES, str(path), f"hold {16 + KEY_BYTES} bytes", len(content))
    count = 1 + (int(starts.read_text(encoding="ascii")) if starts.exists() else 0)
    write_atomically(starts, str(count).encode("ascii"))
    return Begun(run=content[:16].hex(), key=content[16:], number=count * _ATTEMPT)


def outside(plan: Carried) -> bool:
    """Return whether a third party holds the key of encrypted sums."""
    return plan.trust.key_holder == "third-party"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """One start of an aggregator; ``holder``: the deployment's third party, asked only if the plan needs one."""

    folder: Path
    cards: Mapping[str, Card]
    post: Post
    begun: Begun
    system: System
    watch: Callable[[Progress], None] | None = None
    holder: Card | None = None

    def members(self) -> tuple[Consortium, Described]:
        """Return what the sites say about themselves, as kept at the first start, since the data of a run do not
        change.
        """
        path = self.folder / "private" / "members"
        if path.exists():
            kept = Content.read(path.read_bytes())
            said = {name: Content.read(block) for name, block in kept.blocks.items()}
            return consortium(said), described_by(said)
        asked = {site: Content() for site in self.cards}
        found = ask_all(self.post, "hello", asked, _HELLO, "here")
        said = {site: answer.content for site, answer in found.items()}
        made = consortium(said), described_by(said)
        write_atomically(path, Content(blocks={site: content.write() for site, content in said.items()}).write())
        return made

    def check_holder(self, plan: Carried) -> None:
        """Refuse a plan with a third party that the deployment does not have."""
        hint = "Write one that has: fedveil deploy init --key-holder NAME."
        held = not outside(plan) or self.holder is not None
        require(held, "trust.key_holder", "be clients where a deployment has no key holder", "third-party", hint)

    def books(self, stated: Books) -> Path:
        """Return the path of the books. The aggregator has no data, so there is no default place beside them."""
        own = stated.ledger
        hint = "Without one, each run has books of its own, and a cap would bind each alone."
        require(own is not None or not stated.caps, "books.ledger", "be given with a cap", None, hint)
        return own or self.folder / "private" / "ledger.sqlite"

    def fingerprint(self, key: bytes) -> str:
        """Return an identifier of the sites' keys, in place of one of data, since the aggregator has no data."""
        digest = blake2b(key=key, digest_size=32)
        for site in sorted(self.cards):
            digest.update(self.cards[site].text().encode())
        return digest.hexdigest()

    def propose(
        self, plan: Carried, rows: Callable[[str], dict[str, Indices]], values: Mapping[str, Any]
    ) -> dict[str, bytes]:
        """Send the plan to every site, with what it must know of its own records, and require that it agrees.

        The key holder, who has no data, is asked first. Return what each site enrols for masks, where the plan has any.
        """
        stated = {"plan": plan.hash, **values}
        blocks, seconds = {"plan": plan.text().encode()}, plan.trust.timeout
        if outside(plan) and self.holder is not None:
            asked = {self.holder.name: Content(values={"plan": plan.hash}, blocks=blocks)}
            ask_all(self.post, "propose", asked, seconds, "accepted", who="Key holder")
        asked = {site: Content(values=stated, rows=rows(site), blocks=blocks) for site in self.cards}
        found = ask_all(self.post, "propose", asked, seconds, "accepted")
        return {site: answer.content.blocks.get("list", b"") for site, answer in found.items()}

    def mark(self, plan: Carried) -> str:
        """Return what names this run of this plan in a checkpoint."""
        return sha256(f"{plan.hash} {self.begun.run}".encode()).hexdigest()

    def across(self, plan: Carried, members: Consortium, lists: Mapping[str, bytes]) -> Across:
        """Return what adds up the stages of a plan across its sites, going on from what was kept.

        ``lists``: what each site has enrolled for masks.
        """
        private = self.folder / "private"
        sums = RoundSums(
            plan=plan, run=self.begun.run, private=private, cards=self.cards, post=self.post, holder=self.holder
        )
        result = Across(
            plan=plan,
            members=members,
            sums=sums,
            path=private / "checkpoint",
            mark=self.mark(plan),
            tick=self.ticking(plan),
        )
        result.open(lists)
        return result

    def ticking(self, plan: Carried) -> Callable[[int, int], None]:
        """Return a function that reports the progress to the watcher: rounds done, and rounds in all."""
        began, charged = self.system.seconds(), cost_of(plan, plan.target.adversary).epsilon
        done_so_far: list[int] = []

        def tick(done: int, last: int) -> None:
            done_so_far.append(done)
            if self.watch is not None:
                rate = len(done_so_far) / max(self.system.seconds() - began, 1e-9)
                self.watch(Progress(done, last, rate, charged))

        return tick

    def end(self, plan: Carried, more: Mapping[str, bytes]) -> None:
        """Destroy the secrets, then tell the sites that were not told yet; doing it again has no effect.

        What was released is sent to every site, which closes its record; a site that is away gets it when the run is
        resumed. A key holder is told without it, and destroys its key. ``more``: what goes with it.
        """
        # The order of the rounds and the stop follow from the key, so it must stay secret; the name is still needed.
        write_atomically(self.folder / "private" / "aggregator", bytes.fromhex(self.begun.run) + bytes(KEY_BYTES))
        destroy_secrets(self.folder, SECRETS)
        released = self.folder / "private" / "released"
        if not released.exists():
            return
        blocks = {"model": released.read_bytes(), **more}
        asked = {site: Content(blocks=blocks) for site in self.cards}
        if outside(plan) and self.holder is not None:
            asked[self.holder.name] = Content()
        seconds = plan.trust.timeout if all(stage.served for stage in plan.stages) else _HELLO
        found = self.post.ask("finish", 0, asked, seconds, lambda _, answer: answer.kind == "recorded", never)
        if len(found) == len(asked):
            released.unlink(missing_ok=True)
