"""The version, stated only here; certificates, the command line and the package's metadata read it."""

__version__ = "0.1.0"
EARLIER: tuple[str, ...] = ()  # earlier versions whose certificates this version reproduces byte for byte
