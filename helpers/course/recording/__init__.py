"""Runs at real sizes: the experiments, their recorder, and the reader of what was recorded."""
