"""Masks of a whole run: exact sums, and what a server and its colluders can work out, by exact linear algebra.

The algebra knows nothing of the code: unknown values and masks are unknowns of a linear system over a prime field, and
what the adversary learns of the values is what lies in the span of what it sees.
"""

from collections.abc import Iterator, Sequence
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedveil.core.errors import BadValue
from fedveil.sums.masks.amortised import MaskedPart, RoundSetting, RunKeys, check_reveal, open_sum, public_of
from fedveil.sums.masks.keys import SHARE_BYTES, add_masks, recover
from fedveil.sums.masks.setting import AliveAndGone, BadEnvelope, BadKey, BadList, BadShare, TooFew
from fedveil.sums.seam import Whole

RUN = bytes(range(32))
PRIME = 2**61 - 1


def keys_of(count: int) -> dict[str, RunKeys]:
    names = [f"site-{place}" for place in range(count)]
    secrets = {name: bytes([place + 1]) * 32 for place, name in enumerate(names)}
    publics = {name: public_of(secret) for name, secret in secrets.items()}
    return {name: RunKeys(RUN, name, secrets[name], publics) for name in names}


def setting_of(keys: dict[str, RunKeys], turn: int = 0, missing: int = 0, length: int = 3, **more: int) -> RoundSetting:
    names = tuple(sorted(keys))
    return RoundSetting(RUN, turn, names, (1,) * len(names), len(names) - missing, length, **more)


def values_of(keys: dict[str, RunKeys], length: int = 3) -> dict[str, Whole]:
    draw = np.random.default_rng(5)
    return {name: draw.integers(-(2**62), 2**62, size=length) for name in keys}


def masked(keys: dict[str, RunKeys], setting: RoundSetting, values: dict[str, Whole]) -> dict[str, MaskedPart]:
    return {name: keys[name].mask(setting, values[name]) for name in setting.parties}


def opened(
    keys: dict[str, RunKeys], setting: RoundSetting, parts: dict[str, MaskedPart], alive: Sequence[str]
) -> dict[str, dict[str, bytes]]:
    found = {}
    for name in alive:
        sealed = {other: (parts[other].sealed or {})[name] for other in alive if other != name}
        found[name] = keys[name].reveal(setting, frozenset(alive), sealed)
        check_reveal(setting, {one: parts[one] for one in alive}, name, found[name])
    return found


@pytest.mark.parametrize(("count", "missing"), [(1, 0), (2, 0), (5, 0), (3, 1), (5, 1), (6, 2)])
def test_every_set_that_may_be_left_gives_its_plain_sum(count: int, missing: int) -> None:
    keys = keys_of(count)
    values = values_of(keys)
    for turn, gone in enumerate(some for size in range(missing + 1) for some in combinations(sorted(keys), size)):
        setting = setting_of(keys, turn, missing)
        alive = [name for name in setting.parties if name not in gone]
        parts = masked(keys, setting, values)
        reveals = opened(keys, setting, parts, alive) if missing else {}
        total = open_sum(setting, {name: parts[name] for name in alive}, reveals)
        expected = np.sum([values[name].view(np.uint64) for name in alive], axis=0, dtype=np.uint64).view(np.int64)
        assert total.tolist() == expected.tolist()
        again = masked(keys_of(count), setting, values)  # a restarted party says the same
        assert all(np.array_equal(again[name].values, parts[name].values) for name in parts)
        assert all(again[name].sealed == parts[name].sealed for name in parts)


def test_a_sum_needs_the_shares_of_as_many_as_may_be_left() -> None:
    keys = keys_of(5)
    setting = setting_of(keys, 0, 1)
    parts = masked(keys, setting, values_of(keys))
    reveals = opened(keys, setting, parts, setting.parties)
    four = {name: reveals[name] for name in setting.parties[:4]}
    assert np.array_equal(open_sum(setting, parts, four), open_sum(setting, parts, reveals))
    with pytest.raises(TooFew, match="Only 3 shares"):
        open_sum(setting, parts, {name: reveals[name] for name in setting.parties[:3]})


def test_what_does_not_belong_to_the_round_is_refused_by_its_name() -> None:
    keys = keys_of(4)
    now, later = setting_of(keys, 3, 1), setting_of(keys, 4, 1)
    parts, others = masked(keys, now, values_of(keys)), masked(keys, later, values_of(keys))
    one, rest = "site-0", frozenset({"site-1", "site-2", "site-3"})
    everyone = frozenset(now.parties)
    sealed = {name: (parts[name].sealed or {})[one] for name in rest}
    mixed = {**sealed, "site-2": (others["site-2"].sealed or {})[one]}
    swapped = {**sealed, "site-2": sealed["site-1"]}
    for bad in (mixed, swapped):
        with pytest.raises(BadEnvelope, match="site-2"):
            keys[one].reveal(now, everyone, bad)
    with pytest.raises(AliveAndGone):
        keys[one].reveal(now, rest, sealed)
    with pytest.raises(TooFew):
        keys[one].reveal(now, frozenset({one, "site-1"}), {"site-1": sealed["site-1"]})
    with pytest.raises(BadList):
        keys[one].reveal(now, everyone, {"site-1": sealed["site-1"]})
    good = keys[one].reveal(now, everyone, sealed)
    with pytest.raises(BadShare, match="site-0 gave a share of site-2"):
        check_reveal(now, parts, one, {**good, "site-2": good["site-1"]})
    with pytest.raises(BadKey):
        RunKeys(RUN, one, bytes([9]) * 32, {name: public_of(bytes([9]) * 32) for name in now.parties})


def test_dropouts_that_leave_too_few_are_refused() -> None:
    keys = keys_of(4)
    for count, missing, colluders in ((2, 1, 0), (4, 3, 0), (4, 2, 2)):
        with pytest.raises(BadValue, match=r"trust\.dropouts must leave at least"):
            setting_of({name: keys[name] for name in sorted(keys)[:count]}, 0, missing, colluders=colluders)
    with pytest.raises(BadValue, match=r"trust\.dropouts must leave at least 3 of 4"):
        setting_of(keys, 0, 2, signed=True)


# What colluders below the threshold have


@settings(max_examples=30)
@given(guess=st.binary(min_size=32, max_size=32), count=st.integers(3, 6))
def test_shares_below_the_threshold_fit_every_self_mask(guess: bytes, count: int) -> None:
    """All but one of the needed shares leave every key possible: one more share, of some value, makes it that one."""
    keys = keys_of(count)
    setting = setting_of(keys, 0, 1)
    parts = masked(keys, setting, values_of(keys))
    reveals = opened(keys, setting, parts, setting.parties)
    few = {place: reveals[f"site-{place - 1}"]["site-0"][:SHARE_BYTES] for place in range(1, setting.threshold)}
    field = 2**256 + 297
    last = setting.threshold
    at = [*few, last]
    # Lagrange at 0: guess = sum of share * weight; solved for the last share
    weights = {x: np.prod([1], dtype=object) for x in at}
    for x in at:
        for other in at:
            if other != x:
                weights[x] = weights[x] * other * pow(other - x, -1, field) % field
    rest = sum(int.from_bytes(few[x], "little") * int(weights[x]) for x in few)
    share = (int.from_bytes(guess, "little") - rest) * pow(int(weights[last]), -1, field) % field
    assert recover({**few, last: share.to_bytes(SHARE_BYTES, "little")}) == guess


def test_a_late_answer_of_a_missing_site_stays_behind_its_self_mask() -> None:
    """The server has it, every pair key with it, the shares that colluders hold, and the same site's later rounds."""
    keys = keys_of(4)
    values = values_of(keys, 64)
    left = []
    for turn in range(2):
        setting = setting_of(keys, turn, 1, length=64)
        parts = masked(keys, setting, values)
        alive = setting.parties[:3]
        reveals = opened(keys, setting, parts, alive)
        room = parts["site-3"].values.view(np.uint64).copy()
        add_masks(
            room, [(reveals[name]["site-3"], False) for name in alive]
        )  # it has subtracted them: its name is last
        left.append(room - values["site-3"].view(np.uint64))  # what hides the values now: the self-mask alone
    assert all(np.count_nonzero(mask) == 64 for mask in left)
    assert np.count_nonzero(left[0] - left[1]) == 64
    # The same attack does open it where the site gave no self-mask: nobody was allowed to be missing.
    setting = setting_of(keys, 9, 0, length=64)
    part = keys["site-3"].mask(setting, values["site-3"])
    room = part.values.view(np.uint64).copy()
    pairs = [keys[name]._pair(setting, "site-3") for name in setting.parties[:3]]
    add_masks(room, [(pair, False) for pair in pairs])
    assert np.array_equal(room.view(np.int64), values["site-3"])


# What lists that differ from site to site open


def learned_sums(honest: int, lists: Sequence[frozenset[int] | None], threshold: int) -> list[frozenset[int]]:
    """The sets whose sums a server learns that tells every honest site its own list of the missing.

    ``lists``: whom each site was told to be missing; None: it was not asked. By connected components: values are tied
    together by pair masks that nobody revealed, and open if all of their self-masks are known.
    """
    known = {i for i in range(honest) if sum(one is not None and i not in one for one in lists) >= threshold}
    edges = [(i, j) for i, j in combinations(range(honest), 2) if not (j in (lists[i] or ()) or i in (lists[j] or ()))]
    group = list(range(honest))
    for _ in range(honest):
        for i, j in edges:
            group[i] = group[j] = min(group[i], group[j])
    parts = {frozenset(i for i in range(honest) if group[i] == one) for one in group}
    return [part for part in parts if part <= known]


def learned_by_rank(honest: int, lists: Sequence[frozenset[int] | None], threshold: int) -> list[frozenset[int]]:
    """The same by elimination: which sums of values lie in the span of what the server sees."""
    pairs = list(combinations(range(honest), 2))
    size = 2 * honest + len(pairs)  # values, self-masks, pair masks
    rows = []
    for i in range(honest):
        row = [0] * size
        row[i] = row[honest + i] = 1
        for place, (a, b) in enumerate(pairs):
            row[2 * honest + place] = (i == a) - (i == b)
        rows.append(row)
    open_masks = [i for i in range(honest) if sum(one is not None and i not in one for one in lists) >= threshold]
    rows += [[int(place == honest + i) for place in range(size)] for i in open_masks]
    for place, (a, b) in enumerate(pairs):
        if b in (lists[a] or ()) or a in (lists[b] or ()):
            rows.append([int(at == 2 * honest + place) for at in range(size)])
    base = rank(rows)
    return [
        frozenset(some)
        for count in range(1, honest + 1)
        for some in combinations(range(honest), count)
        if rank([*rows, [int(at in some) for at in range(size)]]) == base
    ]


def rank(rows: Sequence[Sequence[int]]) -> int:
    table, found = [[value % PRIME for value in row] for row in rows], 0
    for column in range(len(table[0])):
        pivot = next((r for r in range(found, len(table)) if table[r][column]), None)
        if pivot is None:
            continue
        table[found], table[pivot] = table[pivot], table[found]
        inverse = pow(table[found][column], -1, PRIME)
        for r in range(found + 1, len(table)):
            factor = table[r][column] * inverse % PRIME
            if factor:
                table[r] = [(x - factor * y) % PRIME for x, y in zip(table[r], table[found], strict=True)]
        found += 1
    return found


def all_lists(honest: int, missing: int) -> Iterator[tuple[frozenset[int] | None, ...]]:
    """Every way to tell each site its own list: up to so many missing, itself not among them; or not to ask it."""
    each: list[list[frozenset[int] | None]] = [
        [
            None,
            *(
                frozenset(some)
                for count in range(missing + 1)
                for some in combinations([other for other in range(honest) if other != i], count)
            ),
        ]
        for i in range(honest)
    ]
    return product(*each)


@pytest.mark.parametrize("honest", [3, 4, 5])
def test_sites_must_sign_the_list_unless_there_are_more_than_four_for_each_that_may_be_missing(honest: int) -> None:
    """Brute force over every set of lists: with five honest sites and one missing, each may open alone."""
    keys = keys_of(honest)
    setting = setting_of(keys, 0, 1, signed=True)
    worst = honest
    for lists in all_lists(honest, 1):
        worst = min([worst, *map(len, learned_sums(honest, lists, setting.threshold))])
    assert setting.agrees == (honest <= 4)
    assert worst >= honest - 1 if not setting.agrees else worst < honest - 1


def test_the_components_are_what_elimination_finds() -> None:
    draw = np.random.default_rng(3)
    every = list(all_lists(4, 1))
    for place in draw.choice(len(every), size=25, replace=False):
        lists = every[int(place)]
        sums, spans = learned_sums(4, lists, 3), learned_by_rank(4, lists, 3)
        unions = {frozenset().union(*some) for count in range(1, len(sums) + 1) for some in combinations(sums, count)}
        assert set(spans) == unions


def test_with_one_list_for_all_one_sum_is_learned() -> None:
    """What the quorum's signatures enforce: whoever is missing, the sum over the others and no other."""
    for honest in (3, 4, 5):
        for gone in range(honest):
            lists = [None if i == gone else frozenset({gone}) for i in range(honest)]
            assert learned_by_rank(honest, lists, honest - 1) == [frozenset(range(honest)) - {gone}]
