"""Who executes a plan, and what a run keeps on the disk."""
