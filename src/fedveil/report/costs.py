"""What a job of noisy sums cost, as a section of its page."""

from fedveil.certificate.certify import Certificate, MeasuredCertificate
from fedveil.privacy.guarantee import finite_or_none
from fedveil.report.markup import Markup, paragraph, section, table


def cost_section(certificate: MeasuredCertificate | Certificate, charged: Markup, *more: Markup) -> Markup:
    """Return what each observer learns at most, from this job and from all runs on the data.

    ``charged``: the paragraph about the charge; ``more``: what follows the tables.
    """
    rows, total = [], certificate.data_set
    for one in certificate.guarantees:
        epsilon = finite_or_none(one.answer.epsilon)
        promise = "no guarantee" if epsilon is None else f"{epsilon:.6g}"
        rows.append([one.adversary, promise, f"{one.answer.delta:.3g}", certificate.sees[one.adversary]])
    heads = ["observer", "epsilon", "delta", "sees"]
    costs = table("What each observer learns at most", heads, rows, numbers=(1, 2))
    whole = None if total is None else paragraph(total.sentence(certificate.plan.target.adversary))
    return section("cost", "What it cost", charged, costs, whole, *more)
