"""A process that answers questions one at a time: a line of JSON in, a line of JSON out.

The studio keeps two of them, so that its own process loads little, answers at once, and survives whatever a question
does. A worker ends when the studio does, because its input ends then.
"""

import json
import os
import sys
from importlib import import_module
from typing import Any, Final

from fedveil.core.importing import allowing
from fedveil.core.strict_json import read_object
from fedveil.studio.sentences import sentence_of

# Loaded when they are first asked for: what is behind them takes a second to load.
QUESTIONS: Final = {
    "ready": "fedveil.studio.questions:ready",
    "check": "fedveil.studio.questions:check",
    "plan": "fedveil.studio.questions:plan",
    "questions": "fedveil.studio.questions:questions",
    "columns": "fedveil.studio.drafting:columns",
    "draft": "fedveil.studio.drafting:draft",
    "compare": "fedveil.studio.comparing:compare",
    "certificate": "fedveil.studio.records:certificate",
    "approve": "fedveil.studio.records:approve",
    "sign": "fedveil.studio.records:sign",
    "new_key": "fedveil.studio.records:new_key",
    "books": "fedveil.studio.records:books",
    "run": "fedveil.studio.records:finished_run",
    "predict": "fedveil.studio.records:predict",
    "forgetting": "fedveil.studio.records:forgetting",
    "card": "fedveil.studio.records:card",
    "figure": "fedveil.studio.figures:figure",
    "curve": "fedveil.studio.figures:curve",
    "trade_off": "fedveil.studio.figures:trade_off",
}


def answer_to(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the answer to a question, or the sentence that refuses it."""
    module, _, function = QUESTIONS[name].partition(":")
    try:
        return {"answer": getattr(import_module(module), function)(**arguments)}
    except Exception as error:
        return {"refused": sentence_of(error)}


def main(modules: list[str]) -> None:
    """Answer until the input ends; whatever a library prints goes to standard error.

    ``modules``: code that studies and models may name.
    """
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    with allowing(*modules):
        for line in sys.stdin.buffer:
            asked = read_object(line, "The question")
            answer = answer_to(asked["name"], asked["arguments"])
            answers.write(json.dumps(answer, allow_nan=False).encode() + b"\n")
            answers.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
