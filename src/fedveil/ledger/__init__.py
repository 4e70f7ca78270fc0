"""The ledger of a data set: what was run on it and what privacy it cost.

Append-only, shared by all runs, crash-safe.
"""
