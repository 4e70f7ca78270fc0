"""SimFL: no server; a rotating leader collects the parties' noised sums."""
