"""A released model as one file, and what is done with it: predict, and hand it on in the formats of others."""
