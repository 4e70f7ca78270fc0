"""Sums of encrypted integers (BFV): clients encrypt, the server adds, whoever holds the key opens."""
