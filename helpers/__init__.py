"""Helpers of *Distributed Training, Measured*: real ranks, real bytes, and the formulas beside them.

Nothing is imported here, so that a rank that needs one module pays for one module.
"""
