"""The [generator] table of a study whose generator is a torch module, trained as any torch model is."""

from dataclasses import dataclass
from typing import Any, Final

from fedveil.core.checks import require
from fedveil.core.fields import Exclusion, check_exclusions
from fedveil.core.tables import filled, table
from fedveil.core.values import number, whole
from fedveil.models.torch.loss import PRECISIONS

KIND: Final = "torch"
VAE, MOMENTS, PAIR = "vae", "moments", "pair"
READY: Final = (VAE, MOMENTS, PAIR)  # generators that need no code


EXCLUSIONS: Final = tuple(
    Exclusion(
        name,
        f"a module other than {VAE} and {PAIR}",
        "Your own module has the sizes you give it, and moments have none.",
        lambda request: request.module not in (VAE, PAIR),
    )
    for name in ("latent", "units")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepRequest:
    """``module``: a ready one, or package.file:function of a module that gives each record's loss and draws rows.

    ``latent`` and ``units``: the sizes of "vae" and "pair"; None: 8 and 128. ``clip``, ``radius`` and ``precision`` are
    those of a torch model. ``image``: the height and width of rows that are pictures. ``shares``: public shares of the
    classes among the rows that are drawn; none: all alike. ``whole``: columns of numbers in which only whole numbers
    occur, or true for all of them.
    """

    kind: str = KIND
    module: str = VAE
    latent: int | None = None
    units: int | None = None
    clip: float = 1.0
    radius: float | None = None
    precision: str = "float32"
    image: tuple[int, ...] = ()
    shares: tuple[float, ...] = ()
    whole: bool | tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require(self.kind == KIND, "generator.kind", f"be {KIND}", self.kind)
        fits = isinstance(self.module, str) and (self.module in READY or ":" in self.module)
        rule = f'be {" or ".join(READY)}, or name a function, "package.file:function"'
        require(fits, "generator.module", rule, self.module)
        check_exclusions(self, "generator", EXCLUSIONS)
        for name, most in (("latent", 1000), ("units", 10_000)):
            self._settle_size(name, most)
        clip = number("generator.clip", self.clip)
        require(1e-9 <= clip <= 1e9, "generator.clip", "lie in [1e-9, 1e9]", clip)
        object.__setattr__(self, "clip", clip)
        require(self.precision in PRECISIONS, "generator.precision", f"be one of {PRECISIONS}", self.precision)
        self._settle_rows()

    def _settle_size(self, name: str, most: int) -> None:
        given = getattr(self, name)
        if given is None:
            return
        size = whole(f"generator.{name}", given)
        require(1 <= size <= most, f"generator.{name}", f"lie between 1 and {most}", size)
        object.__setattr__(self, name, size)

    def _settle_rows(self) -> None:
        """Settle how rows are drawn and shown."""
        listed = isinstance(self.image, list | tuple) and len(self.image) in (0, 2)
        require(listed, "generator.image", "be [height, width]", self.image)
        image = tuple(whole("generator.image", size) for size in self.image)
        require(all(1 <= size <= 1000 for size in image), "generator.image", "have sides from 1 to 1000", image)
        object.__setattr__(self, "image", image)
        require(isinstance(self.shares, list | tuple), "generator.shares", "list a share of each class", self.shares)
        shares = tuple(number("generator.shares", share) for share in self.shares)
        right = not shares or (all(share >= 0 for share in shares) and abs(sum(shares) - 1) <= 1e-6)
        require(right, "generator.shares", "be shares that add up to 1", shares)
        object.__setattr__(self, "shares", shares)
        if not isinstance(self.whole, bool):
            names = isinstance(self.whole, list | tuple) and all(isinstance(name, str) for name in self.whole)
            require(names, "generator.whole", "list names of columns, or be true for all of them", self.whole)
            object.__setattr__(self, "whole", tuple(self.whole))

    @classmethod
    def read(cls, given: Any) -> "DeepRequest":
        """Return the request of a study's table."""
        found: DeepRequest = filled(cls, table(given, "generator"), "generator")
        return found
