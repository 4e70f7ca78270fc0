"""Values that both sides of the wire compute independently, so that neither has to believe the other."""
