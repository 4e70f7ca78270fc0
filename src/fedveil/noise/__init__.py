"""Secret random words that are addressed by label and index, and noise on a power-of-two grid made from them."""
