"""The course's figures, drawn from plain data.  Each comes with a sentence that holds its key numbers."""

# ruff: noqa: F401  these names are what the package offers

from helpers.course.plots.accumulated import held_and_sent
from helpers.course.plots.bars import expert_loads, grouped_bars, memory_bars, share_bars, time_bars
from helpers.course.plots.lines import by_depth, curves, in_panels, lost_time, over_seeds, roofline
from helpers.course.plots.memory import category_over_time, memory_over_time, phases
from helpers.course.plots.planning import errors, heat_maps
from helpers.course.plots.replicas import (
    clocked_passes,
    last_passes,
    longer_passes,
    replicated_step,
    times_as_fast,
)
from helpers.course.plots.schematics_collectives import (
    contents_over_time,
    contributors,
    rank_contents,
    rank_grid,
    source_colour,
    two_trees,
)
from helpers.course.plots.schematics_experts import dispatch
from helpers.course.plots.schematics_machines import cluster, host, placements, rings_across
from helpers.course.plots.schematics_model import (
    checkpointed_lifetimes,
    loss_lifetimes,
    mixed_precision,
    one_query,
    opened_block,
    step_lifetimes,
    transformer,
)
from helpers.course.plots.schematics_pipeline import pipeline_schedules, stages
from helpers.course.plots.schematics_shards import (
    construction,
    flat_buckets,
    gathered_layers,
    sharded_elements,
    zero_states,
)
from helpers.course.plots.schematics_tensor import (
    both_cuts,
    divided_block,
    shared_seconds,
    shared_tokens,
    stacked_heads,
)
from helpers.course.plots.strips import step_strips
from helpers.course.plots.style import LOOK, Plot
from helpers.course.plots.tables import Table, table
from helpers.course.plots.timeline import (
    buckets,
    gathered_over_time,
    prefetching,
    reductions_in_a_step,
    timeline,
)
