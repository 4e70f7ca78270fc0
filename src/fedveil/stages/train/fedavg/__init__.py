"""Federated averaging with clients as the protected unit."""
