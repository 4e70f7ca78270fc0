"""The version, as certificates state it."""

__version__ = "0.1.0"
