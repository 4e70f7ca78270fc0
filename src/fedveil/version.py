"""The version, as certificates state it."""

__version__ = "0.1.0"
EARLIER: tuple[str, ...] = ()  # versions before it whose certificates this one writes again byte for byte
