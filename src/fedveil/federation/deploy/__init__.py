"""The files of a deployment (keys, certificates, unit files, instructions) and the check that all is in order."""
