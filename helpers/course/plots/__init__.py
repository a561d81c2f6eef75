"""The course's figures, drawn from plain data.  Each comes with a sentence that holds its key numbers."""

# ruff: noqa: F401  these names are what the package offers

from helpers.course.plots.lines_and_bars import byte_bars, curves, grouped_bars, share_bars, time_bars
from helpers.course.plots.memory import category_over_time, memory_bars, memory_over_time, phases
from helpers.course.plots.planning import errors, heat_maps
from helpers.course.plots.ranks import contents_over_time, contributors, gathered_over_time, rank_contents
from helpers.course.plots.roofline import roofline
from helpers.course.plots.saving import lost_time
from helpers.course.plots.schematics_cluster import cluster
from helpers.course.plots.schematics_collectives import rank_grid, ring
from helpers.course.plots.schematics_construction import construction
from helpers.course.plots.schematics_experts import dispatch, expert_loads
from helpers.course.plots.schematics_fsdp import sharded_elements
from helpers.course.plots.schematics_job import job
from helpers.course.plots.schematics_memory import checkpointed_lifetimes, lifetimes, mixed_precision
from helpers.course.plots.schematics_pipeline import pipeline_schedules, stages
from helpers.course.plots.schematics_tensor import fused_rows, sharded_products, token_lanes
from helpers.course.plots.schematics_topology import placements
from helpers.course.plots.schematics_transformer import by_depth, kept_tensors, transformer
from helpers.course.plots.schematics_zero import (
    flat_buckets,
    flat_partition,
    reductions_in_a_step,
    zero_states,
)
from helpers.course.plots.schematics_zero_3 import gathered_layers, prefetching
from helpers.course.plots.style import LOOK, Plot
from helpers.course.plots.tables import Table, table
from helpers.course.plots.timeline import timeline
