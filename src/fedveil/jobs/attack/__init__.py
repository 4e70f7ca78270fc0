"""Carry out audits: run the real trainer, and hand what each observer sees to ``audit``."""
