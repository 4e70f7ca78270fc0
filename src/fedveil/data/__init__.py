"""Data sources, the fixed public rule that turns them into bounded rows, and the split among clients."""
