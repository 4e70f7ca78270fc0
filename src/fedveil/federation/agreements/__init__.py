"""What both sides of the wire work out alike, so that neither need believe the other."""
