"""A trust as a value: what is refused at its birth, how a study states it, and what it answers."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedveil.core.errors import BadValue
from fedveil.planning.study import study_of
from fedveil.privacy.trust import CENTRAL, Trust
from fedveil.stages.noise_shares import share_deviation

TABLES: dict[str, Any] = {
    "model": {"kind": "logistic", "radius": 5.0},
    "privacy": {"epsilon": 4.0, "delta": 1e-4},
    "schedule": {"rounds": 4, "passes": 1},
}


class TestBirth:
    @pytest.mark.parametrize(
        ("given", "says"),
        [
            ({"server": "honest"}, r"trust\.server must be one of trusted, secure-aggregation, homomorphic"),
            ({"dropouts": -1}, r"trust\.dropouts must lie between 0 and"),
            ({"dropouts": 1.5}, r"trust\.dropouts must be a whole number"),
            ({"colluders": True}, r"trust\.colluders must be a number"),
            ({"colluders": math.nan}, r"trust\.colluders must be a whole number"),
            ({"key_holder": "clients"}, r"trust\.key_holder must be left out with a server other than homomorphic"),
            (
                {"server": "homomorphic", "key_holder": "server"},
                r"trust\.key_holder must be one of clients, third-party",
            ),
            ({"server": "homomorphic", "colluders": 1}, r"trust\.colluders must be 0 when the clients hold the key"),
        ],
    )
    def test_senseless_trust_is_refused(self, given: dict[str, Any], says: str) -> None:
        with pytest.raises(BadValue, match=says):
            Trust(**given)

    def test_who_is_left(self) -> None:
        trust = Trust(server="homomorphic", key_holder="third-party", dropouts=3, colluders=2)
        assert (trust.honest(12), trust.least(12)) == (7, 9)
        assert Trust(server="homomorphic").key_holder == "clients"
        trust.check(6)
        with pytest.raises(BadValue, match="leave an honest client of the 5"):
            trust.check(5)
        assert share_deviation(math.sqrt(7), trust, 12) == pytest.approx(1.0)

    def test_a_study_says_it(self) -> None:
        study = study_of(TABLES | {"trust": {"dropouts": 1}}, base=Path(), data_given=True)
        assert study.trust == Trust(dropouts=1)
        assert study_of(TABLES | {"trust": {}}, base=Path(), data_given=True).trust == Trust()
        assert study_of(TABLES, base=Path(), data_given=True).trust is CENTRAL
        with pytest.raises(BadValue, match="Did you mean dropouts"):
            study_of(TABLES | {"trust": {"dropout": 1}}, base=Path(), data_given=True)


class TestCentral:
    """One party draws the noise: every answer is that of planned noise which nobody adds to and nobody takes from."""

    def test_nothing_is_stated_beside_it(self) -> None:
        with pytest.raises(ValueError, match=r"trust\.dropouts must be left out with central noise, got 1"):
            replace(CENTRAL, dropouts=1)
        assert CENTRAL.tables() == {}
        assert Trust() != CENTRAL

    def test_its_noise_is_one_share_and_does_not_depend_on_who_answers(self) -> None:
        assert (CENTRAL.senders(9), Trust().senders(9)) == (1, 9)
        assert (CENTRAL.surplus(0), Trust(dropouts=2, colluders=1).surplus(9)) == (1.0, 1.5)
        CENTRAL.check(0)
        assert CENTRAL.joined(7) is CENTRAL
        assert Trust().joined(7).hand == 7

    def test_observers_inside_are_charged_as_if_every_unit_had_added_a_share(self) -> None:
        assert CENTRAL.charged(clients=4, units=100, held=30) == (100, 30)
        assert Trust(dropouts=1, colluders=1).charged(clients=9, units=100, held=30) == (7, 0)
        assert Trust(dropouts=7, together=5).charged(clients=9, units=100, held=30) == (2, 1)
        assert [CENTRAL.left("curious-client", cohort) for cohort in (1, 4)] == [1.0, 0.75]
        assert Trust(together=3).left("curious-client", 4) == 0.25
        assert Trust(dropouts=1, colluders=1).left("every-model", 4) == 1.5  # three answer, two of them counted on
