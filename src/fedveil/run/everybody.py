"""A question that every site must answer: the run stops, with a sentence, where one does not."""

from collections.abc import Mapping

from fedveil.errors import FedveilError
from fedveil.run.post import Answer, Post
from fedveil.run.reasons import REASONS
from fedveil.wire.content import Content


class SiteRefused(FedveilError):
    """A site does not agree to the plan; the sentence says which and why."""


def ask_everybody(
    post: Post, kind: str, asked: Mapping[str, Content], timeout: float, wanted: str, turn: int = 0
) -> dict[str, Answer]:
    """An answer from every site, or a refusal that says who did not give it."""
    found = post.ask(kind, turn, asked, timeout, lambda _, answer: answer.kind in (wanted, "refused"), never)
    for site in sorted(asked):
        if site not in found:
            raise SiteRefused(
                f"Site {site} did not answer within {timeout:.0f} seconds. Is its guard running, and its node? "
                "Go on with --resume."
            )
        answer = found[site]
        if answer.kind == "refused":
            code = answer.content.values.get("code")
            raise SiteRefused(
                f"Site {site} refuses: {REASONS.get(str(code), ascii(str(code)[:40]))}. Go on with --resume."
            )
    return found


def never(answers: Mapping[str, Answer]) -> bool:
    """Fewer than all are not enough."""
    return False
