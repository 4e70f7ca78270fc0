"""What an attacker achieves, beside what is certified: exact laws, statistical games, canaries, membership, leakage."""
