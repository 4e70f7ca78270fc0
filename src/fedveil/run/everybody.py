"""A question that every site must answer: the run stops, with a sentence, where one does not."""

from collections.abc import Mapping

from fedveil.errors import FedveilError
from fedveil.run.post import Answer, Post
from fedveil.run.reasons import REASONS
from fedveil.wire.content import Content


class SiteRefused(FedveilError):
    """A site does not agree to the plan; the sentence says which and why."""


def ask_everybody(
    post: Post, kind: str, asked: Mapping[str, Content], timeout: float, wanted: str, turn: int = 0, who: str = "Site"
) -> dict[str, Answer]:
    """An answer from every site (or from whom ``who`` names), or a refusal that says who did not give it."""
    found = post.ask(kind, turn, asked, timeout, lambda _, answer: answer.kind in (wanted, "refused"), never)
    for site in sorted(asked):
        if site not in found:
            raise SiteRefused(
                f"{who} {site} did not answer within {timeout:.0f} seconds. Is its guard running, and its node? "
                "Go on with --resume."
            )
        answer = found[site]
        if answer.kind == "refused":
            raise SiteRefused(f"{who} {site} refuses: {reason(answer)}. Go on with --resume.")
    return found


def reason(answer: Answer) -> str:
    """Why a site has refused."""
    code = answer.content.values.get("code")
    return REASONS.get(str(code), ascii(str(code)[:40]))


def never(answers: Mapping[str, Answer]) -> bool:
    """Fewer than all are not enough."""
    return False
