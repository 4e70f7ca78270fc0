"""The files of a deployment (keys, certificates, unit files, instructions), and a check that all is in order."""
