"""The sentence under every table that is opened; apart, because drafting itself is slow to load."""

NOT_LOOKED_AT = "Only the names and types of the columns were read; no value is shown, and nothing was charged."
