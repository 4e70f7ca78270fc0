"""The ways to learn together: a folder each, what each must know in base.py, and one registry."""
