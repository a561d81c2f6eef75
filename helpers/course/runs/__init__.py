"""Trainings that several lessons share, each a function for `launch`."""
