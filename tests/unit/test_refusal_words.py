"""Every code by which a site may refuse is explained to the operator who reads it."""

import re
from pathlib import Path

import fedveil
from fedveil.federation.aggregator.turn import REASONS


def test_every_refusal_code_is_explained() -> None:
    source = Path(fedveil.__file__).parent
    codes = {code for path in source.rglob("*.py") for code in re.findall(r'Refused\("([a-z-]+)"\)', path.read_text())}
    assert len(codes) > 30
    assert codes <= set(REASONS), sorted(codes - set(REASONS))
