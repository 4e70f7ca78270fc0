"""Sums of encrypted integers (BFV): clients encrypt, the server adds, the key holder opens the sum."""
