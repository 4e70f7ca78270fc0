"""A whole job as one function: train, certify, report, here or across machines; compare several algorithms."""
