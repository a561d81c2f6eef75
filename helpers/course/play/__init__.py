"""Figures to play with: one output of HTML each, which needs no kernel, no network and no library.

    from helpers import play

    play.budget(stage=1, gpus=8)                        # memory against seconds, with goals to reach
    play.timeline(ledger.history(), "One step")         # a cursor over what a rank held
    play.ring(400)                                      # the contents of a ring all-reduce, turn by turn
    play.schedule()                                     # pipeline schedules, with play and pause
    play.replicas()                                     # a step on more GPUs, and what of its messages hides
    play.shared()                                       # a block on several GPUs: divided, repeated, sent
    play.cuts()                                         # the job's pipeline: where to cut, and what waits
    play.rack()                                         # hosts and cables: which axis lies where

Python computes every number and draws the picture (`vectors`); the output stores it as an image with its
sentence, so that it is seen where scripts do not run (`played`).  Where they run, a script moves what Python
drew and looks numbers up in tables (`grids`); it has no formula of the course.  To make another figure, write
a module that returns a `Played`, and a script of the same kind: `rings.py` and `ring.js` are the shortest.
"""

# ruff: noqa: F401  these names are what the package offers

from helpers.course.play.blocks import shared
from helpers.course.play.budgets import budget
from helpers.course.play.cutting import cuts
from helpers.course.play.gpus import replicas
from helpers.course.play.histories import held_by_name, timeline
from helpers.course.play.pipelined import schedule
from helpers.course.play.racks import rack
from helpers.course.play.rings import ring
