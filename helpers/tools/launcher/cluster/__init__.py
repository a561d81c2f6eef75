"""Ranks on other machines: under `srun`, or under `deepspeed` with a hostfile, through files that all
machines see."""
