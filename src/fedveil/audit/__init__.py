"""What an attacker achieves, compared with what is certified: exact laws, games, canaries, membership, leakage."""
