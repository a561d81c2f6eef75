"""Ranks started by the real `deepspeed` command, each under a keeper."""
