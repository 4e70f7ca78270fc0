"""The training algorithms: a folder for each, their common interface in base.py, and one registry."""
