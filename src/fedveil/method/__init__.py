"""The ways to learn together, as frozen values: what each does, and so what each observer may learn from it."""
