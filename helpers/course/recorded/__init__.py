"""Recorded runs: `reading` reads their files, `clocked` and `held` say what times and bytes mean, `predicted`
has theory beside them."""

# ruff: noqa: F401  these names are what the package offers

from helpers.course.recorded.clocked import (
    case,
    message_seconds,
    parts_of_calls,
    pipeline_work,
    step_time,
    timelines,
    waterfall,
)
from helpers.course.recorded.exposing import costs, costs_of_messages, exposed_messages, hidden, longer_passes
from helpers.course.recorded.hanging import hang
from helpers.course.recorded.held import device_parts, highest, predicted_peaks, step_peak_clusters
from helpers.course.recorded.predicted import machine, peak_rows, plan, predicted_step, stage_0, trainings
from helpers.course.recorded.reading import Run, labels, nccl, read, runs
