"""Encrypted sums across sites: the plain sum's bits, a key the aggregator cannot read, one opened sum a round."""

from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedveil.core.errors import TooFewSurvivors
from fedveil.engine.train import train
from fedveil.federation.aggregator.turn import SiteRefused
from fedveil.federation.agreements import KEY_FILE, consent, parameters_of
from fedveil.noise.entropy import Entropy
from fedveil.planning.plan import read_plan
from fedveil.planning.study import Study
from fedveil.stages.adding import plain_sum
from fedveil.sums.homomorphic.library import has_tenseal
from fedveil.sums.homomorphic.roles import Adder, Encryptor, make_keys
from fedveil.wire.content import Content
from fedveil.wire.envelope import Head, peek, seal, unseal
from fedveil.wire.keys import Identity
from unit.federated_studies import STUDIES
from unit.federations import SITES, Killed, Trial, made_up, study
from unit.plans import some_records
from unit.test_federate import missing
from unit.test_site_guard import ask

pytestmark = pytest.mark.skipif(not has_tenseal(), reason="TenSEAL is not installed (fedveil[he])")
ENCRYPTED = {"server": "homomorphic", "dropouts": 3, "timeout": 60.0}


@pytest.fixture
def trial(tmp_path: Path) -> Trial:
    return Trial(tmp_path, some_records(60, clients=9))


def expected(trial: Trial, *lost: tuple[int, str]) -> bytes:
    """The open sum in one process."""
    plan, seed = read_plan((trial.folder / "out" / "plan.toml").read_text()), Entropy.from_seed(3)
    model = train(plan, trial.records, seed, add_up=plain_sum, fails=missing(*lost)).model
    return bytes(model.tobytes())


def private(trial: Trial, site: str) -> Path:
    (folder,) = (trial.folder / site / "runs").iterdir()
    return folder / "private"


def secret_of(trial: Trial, site: str) -> bytes:
    return Content.read((private(trial, site) / KEY_FILE).read_bytes()).blocks["secret"]


def stopped(trial: Trial, rounds: int = 1, **parts: Any) -> str:
    """Run some rounds, then kill the aggregator; the run's name."""

    def watch(now: Any) -> None:
        if now.round == rounds:
            raise Killed

    with pytest.raises(Killed):
        trial.run(study(trust=ENCRYPTED, **parts), watch=watch)
    return peek(trial.carrier.sent[-1][1]).run


def wide_windows() -> Study:
    return study(
        privacy={"epsilon": 30.0, "delta": 1e-5, "neighbours": "zero-out", "adversary": "server"},
        algorithm={"kind": "dpsgd", "network": {"window": 40.0}},
        schedule={"rounds": 6},
    )


@pytest.mark.parametrize(
    "make",
    [STUDIES["fedavg, adaptive, masked"], wide_windows, STUDIES["dpsgd, independent"]],
    ids=["fedavg", "dpsgd", "independent"],
)
def test_other_methods_give_the_same_bits_too(trial: Trial, make: Callable[[], Study]) -> None:
    wanted = make()
    trial.run(replace(wanted, trust=replace(wanted.trust, server="homomorphic", key_holder="clients")))
    assert trial.model().tobytes() == expected(trial)
    kinds = {"here", "accepted", "made", "taken", "encrypted", "consented", "opened", "recorded"}
    assert {peek(envelope).kind for _, envelope in trial.carrier.back} == kinds


@pytest.mark.parametrize("kind", ["made", "taken", "encrypted", "consented", "opened"])
def test_killed_at_any_moment_everything_goes_on_to_the_same_bits(trial: Trial, kind: str) -> None:
    """The aggregator, and the guards with it; round 2 where it is in a round."""
    alive = [True]

    def meddle(here: str, site: str, envelope: bytes) -> bytes:
        head = peek(envelope)
        if alive and (here, head.kind) == ("up", kind) and (head.round == 1 or kind in ("made", "taken")):
            alive.clear()
            raise Killed
        return envelope

    trial.carrier.meddle = meddle
    with pytest.raises(Killed):
        trial.run(study(trust=ENCRYPTED))
    trial.restart_guards()
    trial.run(study(trust=ENCRYPTED), resume=True)
    assert trial.model().tobytes() == expected(trial)
    sums: dict[int, set[bytes]] = {}
    for site, envelope in trial.carrier.sent:
        if peek(envelope).kind == "open":
            body = unseal(envelope, trial.identities[site], trial.aggregator.card).body
            sums.setdefault(peek(envelope).round, set()).add(Content.read(body).blocks["sum"])
    assert sorted(sums) == [0, 1, 2]
    assert all(len(different) == 1 for different in sums.values())
    assert not any((private(trial, site) / KEY_FILE).exists() for site in SITES)  # destroyed with the noise's


@pytest.mark.parametrize("kind", ["encrypt", "open"])
def test_a_lost_site_is_left_out_and_another_opens(trial: Trial, kind: str) -> None:
    """The east, which made the key, is gone before its part of round 2, or when it should open the sum."""

    def meddle(way: str, site: str, envelope: bytes) -> bytes | None:
        head = peek(envelope)
        gone = (way, site, head.round) == ("down", "east", 1) and head.kind in (kind, "open")
        return None if gone else envelope

    trial.carrier.meddle = meddle
    trial.run(study(trust=ENCRYPTED))
    assert trial.model().tobytes() == expected(trial, *([(1, "east")] if kind == "encrypt" else []))


def test_the_aggregator_sees_no_key_and_no_part(trial: Trial) -> None:
    """It opens every envelope it got: neither the key that opens sums nor a client's numbers are in one."""
    stopped(trial, 2)
    secrets = {secret_of(trial, site) for site in SITES}
    assert len(secrets) == 1  # all sites have the same
    (secret,) = secrets
    told = b"".join(unseal(e, trial.aggregator, trial.cards[site]).body for site, e in trial.carrier.back)
    kept = b"".join(path.read_bytes() for path in (trial.folder / "out").rglob("*") if path.is_file())
    public = Content.read((private(trial, "east") / KEY_FILE).read_bytes()).blocks["public"]
    assert public in told
    for place in range(len(secret) - 4096, len(secret) - 64, 256):  # the secret key stands behind the public one
        assert secret[place : place + 64] not in told + kept
    plan, seen = read_plan((trial.folder / "out" / "plan.toml").read_text()), []

    def spy(turn: int, parts: Any) -> Any:
        seen.extend(part.tobytes() for part in parts.values())
        return plain_sum(turn, parts)

    train(plan, trial.records, Entropy.from_seed(3), add_up=spy)
    assert len(seen) == 27
    assert not any(part[at : at + 8] in told for part in seen for at in range(0, len(part), 8))


def summed(trial: Trial, turn: int, clients: range, public: bytes | None = None) -> bytes:
    """An encrypted sum that the aggregator makes of its own numbers, under the run's key or another."""
    plan = read_plan((trial.folder / "out" / "plan.toml").read_text())
    parameters, key = parameters_of(plan), public or (trial.folder / "out" / "private" / "sums.public").read_bytes()
    adder = Adder.open(key, parameters, turn=turn, size=plan.dimension)
    for client in clients:
        part = np.full(plan.dimension, client, dtype=np.int64)
        adder = adder.take(Encryptor.open(key, parameters).encrypt(turn, client, part))
    return adder.close()


def agreed(trial: Trial, run: str, turn: int, message: bytes, *sites: str) -> Content:
    """A question to open a sum, with the word of these sites, given or not."""
    digest = sha256(message).hexdigest()
    words = {f"by {site}": consent(trial.identities[site], run, turn, digest) for site in sites or ("east", "south")}
    return Content(blocks={"sum": message, **words})


def test_no_two_sums_of_a_round_are_opened_whichever_sites_are_asked(trial: Trial) -> None:
    """An aggregator that lies: it has one sum opened by the north, and wants another from the south."""
    run = stopped(trial)
    first, other = (summed(trial, 1, range(9)) for _ in range(2))

    def word(site: str, message: bytes, number: int) -> tuple[str, Content]:
        asked = Content(values={"sum": sha256(message).hexdigest()})
        return ask(trial, run, "consent", 1, asked, 2**50 + number, site)

    kind, given = word("east", first, 0)
    assert kind == "consented"
    words = {"by east": given.blocks["consent"]}
    assert ask(trial, run, "open", 1, Content(blocks={"sum": first, **words}), 2**50 + 1)[0] == "opened"
    trial.restart_guards()
    assert word("east", other, 2)[1].values == {"code": "spent-round"}
    assert word("north", other, 3)[1].values == {"code": "spent-round"}
    kind, given = word("south", other, 4)
    assert kind == "consented"  # it alone: not enough
    asked = {"sum": other, "by south": given.blocks["consent"], **words}
    assert ask(trial, run, "open", 1, Content(blocks=asked), 2**50 + 5, "south")[1].values == {"code": "no-consent"}
    assert ask(trial, run, "consent", 1, Content(values={"sum": "x"}), 2**50 + 6)[1].values == {"code": "malformed"}


def test_a_sum_without_the_word_of_most_sites_stays_closed_and_unspent(trial: Trial) -> None:
    run = stopped(trial)
    message = summed(trial, 1, range(9))
    digest, right = sha256(message).hexdigest(), agreed(trial, run, 1, message, "east").blocks["by east"]
    for number, words in enumerate(
        [
            {},
            {"by north": consent(trial.identities["north"], run, 1, digest)},  # its own counts once
            {"by south": right},
            {"by east": right[:-1]},
            {"by east": consent(trial.identities["east"], run, 2, digest)},
            {"by east": consent(trial.identities["east"], "f" * 32, 1, digest)},
            {"by east": consent(trial.identities["east"], run, 1, sha256(b"").hexdigest())},
            {"by west": right},
        ]
    ):
        answer = ask(trial, run, "open", 1, Content(blocks={"sum": message, **words}), 2**50 + number)[1]
        assert answer.values["code"] in ("no-consent", "unknown-peers")
    assert ask(trial, run, "open", 1, agreed(trial, run, 1, message, "east"), 2**51)[0] == "opened"


def test_a_run_waits_for_most_sites_and_says_for_whom(trial: Trial) -> None:
    gone = {"east", "south"}
    trial.carrier.meddle = lambda way, site, e: None if site in gone and peek(e).kind == "consent" else e
    with pytest.raises(TooFewSurvivors, match="2 of 3 sites consent, and 1 do; it waits for east, south"):
        trial.run(study(trust=ENCRYPTED))
    gone.clear()
    trial.run(study(trust=ENCRYPTED), resume=True)
    assert trial.model().tobytes() == expected(trial)


def test_one_sum_of_a_round_is_opened_ever(trial: Trial) -> None:
    run = stopped(trial)
    first, other = (agreed(trial, run, 1, summed(trial, 1, range(9))) for _ in range(2))
    kind, answer = ask(trial, run, "open", 1, first, 2**50)
    assert (kind, answer.rows["total"].tolist(), answer.values["clients"]) == ("opened", [36] * 3, list(range(9)))
    assert ask(trial, run, "open", 1, first, 2**50 + 1)[0] == "opened"
    for number in (2, 3):
        assert ask(trial, run, "open", 1, other, 2**50 + number)[1].values == {"code": "spent-round"}
        trial.restart_guards()
    early = agreed(trial, run, 0, summed(trial, 0, range(9)))
    assert ask(trial, run, "open", 0, early, 2**50 + 4)[1].values == {"code": "spent-round"}


SUMS: dict[str, Callable[[Trial, int], bytes]] = {
    "too few": lambda trial, turn: summed(trial, turn, range(5)),
    "of another round": lambda trial, turn: summed(trial, turn - 1, range(9)),
    "cut short": lambda trial, turn: summed(trial, turn, range(9))[:-1],
    "empty": lambda trial, turn: b"",
    "under another key": lambda trial, turn: summed(
        trial,
        turn,
        range(9),
        make_keys(parameters_of(read_plan((trial.folder / "out" / "plan.toml").read_text()))).public,
    ),
}


def test_what_is_no_sum_of_the_round_is_not_opened_and_spends_it(trial: Trial) -> None:
    schedule = {"rounds": 8, "passes": 1, "batch": 7, "step_size": 0.5, "noise_std": 8.0}
    run = stopped(trial, schedule=schedule)
    for turn, what in enumerate(sorted(SUMS), start=1):
        bad = agreed(trial, run, turn, SUMS[what](trial, turn))
        kind, answer = ask(trial, run, "open", turn, bad, 2**50 + 2 * turn)
        assert (kind, answer.values, dict(answer.rows)) == ("refused", {"code": "no-sum"}, {})
        good = agreed(trial, run, turn, summed(trial, turn, range(9)))
        assert ask(trial, run, "open", turn, good, 2**50 + 2 * turn + 1)[1].values == {"code": "spent-round"}
    late = agreed(trial, run, 8, summed(trial, 8, range(9)))
    assert ask(trial, run, "open", 8, late, 2**51)[1].values == {"code": "no-such-round"}


def lie(trial: Trial, said: Content, turn: int) -> Content:
    """Parts under another key; parts cut short; one client's part for another's."""
    plan = read_plan((trial.folder / "out" / "plan.toml").read_text())
    parameters, zero = parameters_of(plan), np.zeros(plan.dimension, dtype=np.int64)
    if turn == 0:
        other = Encryptor.open(make_keys(parameters).public, parameters)
        return Content(blocks={name: other.encrypt(turn, int(name), zero) for name in said.blocks})
    if turn == 1:
        return Content(blocks={name: part[:-1] for name, part in said.blocks.items()})
    return Content(blocks=dict(zip(said.blocks, reversed(said.blocks.values()), strict=True)))


def test_a_site_whose_parts_are_none_counts_as_missing(trial: Trial) -> None:
    def meddle(way: str, site: str, envelope: bytes) -> bytes:
        head = peek(envelope)
        if (way, site, head.kind) != ("up", "south", "encrypted"):
            return envelope
        said = Content.read(unseal(envelope, trial.aggregator, trial.cards["south"]).body)
        changed = lie(trial, said, head.round).write()
        return seal(head, changed, trial.identities["south"], trial.aggregator.card, made_up("lie", 32))

    trial.carrier.meddle = meddle
    trial.run(study(trust=ENCRYPTED))
    assert trial.model().tobytes() == expected(trial, *((turn, "south") for turn in range(3)))


def test_a_key_that_is_not_the_makers_of_this_run_is_refused(trial: Trial) -> None:
    run = stopped(trial)
    before = (private(trial, "north") / KEY_FILE).read_bytes()
    keys = make_keys(parameters_of(read_plan((trial.folder / "out" / "plan.toml").read_text())))
    both = Content(blocks={"public": keys.public, "secret": keys.secret}).write()

    def sealed(name: str, maker: Identity, sites: tuple[str, ...] = SITES) -> bytes:
        body = Content(values={"sites": list(sites)}, blocks={"keys": both}).write()
        head = Head(run=name, sender="east", receiver="north", kind="sums-key", round=0, number=0)
        return seal(head, body, maker, trial.cards["north"], made_up("once", 32))

    east = trial.identities["east"]
    given = [
        (sealed(run, Identity.make("east", made_up("forger"))), "bad-signature"),
        (sealed("f" * 32, east), "other-key"),
        (sealed(run, east), "other-key"),  # a second one
        (sealed(run, east, ("east", "north")), "unknown-peers"),  # most of whom?
        (sealed(run, east)[:-1], "bad-signature"),
        (b"", "malformed"),
    ]
    for number, (envelope, code) in enumerate(given):
        kind, answer = ask(trial, run, "take-key", 0, Content(blocks={"key": envelope}), 2**50 + number)
        assert (kind, answer.values) == ("refused", {"code": code})
    assert ask(trial, run, "make-key", 0, Content(), 2**51)[1].values == {"code": "not-the-maker"}
    assert (private(trial, "north") / KEY_FILE).read_bytes() == before


def test_nothing_else_is_answered_in_an_encrypted_run(trial: Trial) -> None:
    run = stopped(trial)
    _, model = next(
        (site, unseal(e, trial.identities[site], trial.aggregator.card).body)
        for site, e in reversed(trial.carrier.sent)
        if site == "north" and peek(e).kind == "encrypt"
    )
    content = Content.read(model)
    assert ask(trial, run, "step", 1, content, 2**50)[1].values == {"code": "not-in-the-open"}
    assert ask(trial, run, "masked", 1, content, 2**50 + 1)[1].values == {"code": "unknown-kind"}
    moved = Content(rows={"model": content.rows["model"] + 0.5})
    assert ask(trial, run, "encrypt", 0, moved, 2**50 + 2)[1].values == {"code": "changed-round"}


def test_a_round_that_nobody_opens_is_refused_and_asked_again_as_it_was(trial: Trial) -> None:
    shut = [True]
    trial.carrier.meddle = lambda way, site, e: None if shut and peek(e).kind == "open" else e
    with pytest.raises(TooFewSurvivors, match="No site has opened the sum of round 1"):
        trial.run(study(trust=ENCRYPTED))
    shut.clear()
    trial.run(study(trust=ENCRYPTED), resume=True)
    assert trial.model().tobytes() == expected(trial)


def test_sites_that_do_not_know_each_other_share_no_key(trial: Trial) -> None:
    guard = trial.carrier.guards["south"]
    guard.site = replace(guard.site, peers={})
    with pytest.raises(SiteRefused, match="south refuses: it has no public keys of the other sites"):
        trial.run(study(trust=ENCRYPTED))
    guard = trial.carrier.guards["east"]
    guard.site = replace(guard.site, peers={"north": trial.cards["north"]})
    with pytest.raises(SiteRefused, match="east has no public key of south"):
        trial.run(study(trust=ENCRYPTED), resume=True)
