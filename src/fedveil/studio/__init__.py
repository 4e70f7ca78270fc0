"""The studio: a local web application in which a study is designed, signed, run, watched and explored.

It computes nothing about privacy itself: every number comes from the functions that the command line calls.
"""
