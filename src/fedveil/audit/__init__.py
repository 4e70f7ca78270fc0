"""What an attacker achieves, beside what is certified: exact laws, worst cases, verdicts."""
