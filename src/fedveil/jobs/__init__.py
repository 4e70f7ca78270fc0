"""The main job as one function: train, certify, report; in this process or across machines."""
