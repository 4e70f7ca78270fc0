"""The version, stated only here; certificates, the command line and the package's metadata read it."""

__version__ = "1.0.0rc1"
