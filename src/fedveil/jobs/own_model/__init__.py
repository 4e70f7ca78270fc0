"""A party's own model, made from the shared one and its own records, at that party and nowhere else."""
