"""Carry out a plan in this process, and manage what a run keeps on the disk."""
