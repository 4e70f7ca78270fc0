"""The version, stated here and nowhere else: certificates, the command line and the package's metadata read it."""

__version__ = "0.1.0"
EARLIER: tuple[str, ...] = ()  # versions before it whose certificates this one writes again byte for byte
