"""Every figure is a picture with a sentence that holds its key numbers, as alternative text and as
caption."""

import html
import io

import pytest
import torch
from helpers import job, plots
from helpers.course.plots.schematics_collectives import parents
from helpers.course.plots.style import picture
from helpers.course.plots.timeline import KINDS, side_by_side
from helpers.tools.measure.ledger import CATEGORIES, History
from helpers.tools.measure.timelines import MESSAGES, SENT, WORK
from helpers.tools.theory import MachineConstants

STATES = {"parameters": 4_000_000, "gradients": 2_000_000}
HISTORY = History(
    {category: [0, 10, 20, 30, 20, 10, 0] * 10 for category in ("parameters", "activations")},
    [(0, "forward"), (30, "backward"), (69, "after step")],
)
MACHINE = MachineConstants(matrix={"bf16": {512: 50e12, 1024: 100e12}}, memory=1e12, launch=1e-5)
PASS = job.last_pass(64, 25e9)
FIGURES = {
    "in panels": (
        plots.in_panels({name: {"a line": ([0, 1], [2, 3])} for name in ("first", "second")}, "Title", "x"),
        "Title. At the end, first: a line 3; second: a line 3.",
    ),
    "replicas": (
        plots.replicated_step(16.1, {"forward": 0.3, "backward": 0.8, "update": 0.2}, PASS, "Title"),
        "eight forward passes take 0.30 s each",
    ),
    "last passes": (
        plots.last_passes({"64 GPUs": PASS}, "Title"),
        "64 GPUs: 1.26 s of messages, 0.50 s exposed",
    ),
    "longer passes": (
        plots.longer_passes({"no messages": (0.026, 0.0), "DDP": (0.026, 0.01)}, 0.011, "Title"),
        "Title. The work takes 26 ms, the message alone 11. Added: DDP 10.",
    ),
    "clocked passes": (
        plots.clocked_passes(
            {"late": [("backward", 0.0, 0.2), ("all-reduce", 0.2, 0.3)]},
            {"late": 0.31},
            "Title",
            {"late": 0.29},
        ),
        "late: all means there at 310, idle for 110, predicted 290.",
    ),
    "times as fast": (
        plots.times_as_fast({"a card": {"in buckets": 5.0, "at the end": 3.5}}, 8, "Title"),
        "a card: 5.0 in buckets, 3.5 at the end; 8 would be all.",
    ),
    "host": (plots.host(8, 450e9, 50e9, "Title"), "Each of 8 GPUs holds 16 GB of gradients in 8 parts"),
    "rings across": (plots.rings_across(2, 4, "Title"), "leaves by card 3; 4 rings use all 4 cards."),
    "two trees": (
        plots.two_trees(8, "Title"),
        "first half: root 0, leaves 1, 3, 5, 7; second half: root 7, leaves 0, 2, 4, 6.",
    ),
    "buckets": (
        plots.buckets(4, 2, (1, 3), "Title"),
        "link, 1 ms each: 4 until 9; link, 3 ms each: 4 until 14",
    ),
    "memory bars": (
        plots.memory_bars({"bf16": {"predicted": STATES, "measured": STATES}}, "Title"),
        "measured 6,000,000 bytes",
    ),
    "two clusters": (
        plots.memory_bars({"bf16": {"a": STATES}, "fp32": {"a": {"parameters": 5e12}}}, "Title"),
        "fp32: a 5.0 TB",
    ),
    "per parameter": (
        plots.memory_bars({"stage 0": {"a": STATES, "b": None}}, "Title", 2_000_000),
        "a 3.000 bytes per parameter, b does not fit",
    ),
    "mixed precision": (
        plots.mixed_precision(
            {"parameters": 2, "gradients": 2, "master weights": 4, "optimizer states": 8}, "Title"
        ),
        "master weights 4, optimizer states 8; together 16; in the step gradients in fp32, 4.",
    ),
    "checkpointed lifetimes": (
        plots.checkpointed_lifetimes(3, "Title"),
        "all kept: the inside of 3 blocks at once, checkpointed: the inside of 1 block",
    ),
    "loss lifetimes": (
        plots.loss_lifetimes("Title"),
        "log-probabilities, fp32, 4 bytes, from 3 to 6",
    ),
    "step lifetimes": (
        plots.step_lifetimes("Title"),
        "FusedAdam: gradients, bf16, 2 bytes, from 1 to 3, gradients, fp32, in pieces",
    ),
    "heat maps": (
        plots.heat_maps(
            {
                "a": {("1 B", "8"): ("stage 1", "4"), ("7 B", "8"): None},
                "b": dict.fromkeys([("1 B", "8"), ("7 B", "8")]),
            },
            "Title",
            "x",
            "y",
        ),
        "Title, y over x. Of 2 cells each: a: stage 1 1, nothing fits 1; b: nothing fits 2.",
    ),
    "errors": (
        plots.errors(
            {"one run": {"paper": -70.0, "other": None}, "another": {"paper": 5.0, "other": 0.0}}, "Title"
        ),
        "Title. Errors: paper -70.0 to +5.0 %; other +0.0 to +0.0 %.",
    ),
    "long steps": (
        plots.time_bars({"a": {"work": 40.0, "messages": 2.0}}, "Title"),
        "Title. a 42 seconds (work 40, messages 2).",
    ),
    "capacity": (
        plots.memory_bars({"bf16": {"a": STATES}}, "Title", capacity=24e9),
        "a 6,000,000 bytes; capacity 24.0 GB",
    ),
    "memory over time": (plots.memory_over_time(HISTORY, "Title", {"peak": 60}), "a peak of 60 bytes"),
    "curves": (
        plots.curves({"line": ([1, 2], [3, 4])}, "Title", "x", "y", points={"dots": ([1, 2], [3, 5])}),
        "dots ends at 5",
    ),
    "curves with crossings": (
        plots.curves({"line": ([1, 2], [3, 4])}, "Title", "x", "y", crossings={"even": ([2], [4])}),
        "even ends at 4",
    ),
    "curves with peaks": (
        plots.curves({"line": ([1, 2, 3], [3, 9, 4])}, "Title", "x", "y", peaks=True),
        "line has its peak at 9",
    ),
    "curves named at their ends": (
        plots.curves({"line": ([1, 2], [3, 4])}, "Title", "x", "y", ends=True),
        "line ends at 4",
    ),
    "logarithmic curves": (
        plots.curves({"line": ([1, 2], [3, 4])}, "Title", "x", "y", log=True),
        "line ends at 4",
    ),
    "ratios": (
        plots.grouped_bars({"all-\nreduce": {"predicted": 1.5, "sent": 1.5}}, "Title", "S", values="%.1f"),
        "Title, S. all-reduce: predicted 1.50, sent 1.50.",
    ),
    "rank contents": (
        plots.rank_contents([[1, 2], [10, 20]], [[11, 22], None], "Title"),
        "rank 0 [1, 2] -> [11, 22]; rank 1 [10, 20] -> nothing",
    ),
    "gathered over time": (
        plots.gathered_over_time(
            {"a": [True, False, True], "b": [False] * 3}, {"forward": 2, "backward": 1}, "Title", "x"
        ),
        "How often each is gathered: a 2, b 0.",
    ),
    "prefetching": (
        plots.prefetching(3, 0.8, "Title"),
        "one ahead: work: 6 until 9.8; one ahead: gathers: 5 until 6.6",
    ),
    "gathered layers": (
        plots.gathered_layers({"between": [], "1 computes": [1]}, ["embedding", "block"], 4, "Title"),
        "Of 2 layers each of 4 ranks holds 0.5 in shards. between: nothing gathered, 0.5 layers; "
        "1 computes: block gathered, 1.25 layers.",
    ),
    "roofline": (
        plots.roofline(MACHINE, {"norm": (0.5, 4e11), "linear": (300, 90e12)}, "Title"),
        "at best 100 TFLOP/s, from the ridge at 100 FLOPs per byte on; memory 1,000.0 GB/s; "
        "norm: 0.5 FLOPs per byte, 0.4 TFLOP/s, 80 % of what is attainable there; linear: 300 "
        "FLOPs per byte, 90 TFLOP/s, 90 % of",
    ),
    "times": (
        plots.time_bars(
            {"predicted": {"products": 0.2, "messages": 0.05, "launches": 0.0}, "clock": 0.3}, "Title"
        ),
        "Title. predicted 250 milliseconds (products 200, messages 50); clock 300 milliseconds.",
    ),
    "a transformer": (
        plots.transformer(
            {"embedding": "5 %", "norm": "", "attention": "33 %", "feed-forward": "62 %", "head": "tied"},
            12,
            "Title",
        ),
        "Title. embedding; in each block norm, attention, add, norm, feed-forward, add; norm; "
        "head; 12 blocks. embedding 5 %, attention 33 %",
    ),
    "an opened block": (
        plots.opened_block({"h": 64, "a": 8, "k": 2, "d": 16, "f": 160}, 1024, "Title", kept=["z"]),
        "queries s × ad 0 MB; keys s × kd 0 MB; values s × kd 0 MB; queries, turned s × ad 0 MB; "
        "keys, turned s × kd 0 MB; z s × ad 0 MB; logsumexp s × a 0 MB; W_o ad × h 0 MB; ",
    ),
    "one query": (
        plots.one_query("He sees it now", [0, 0, 0], "Title"),
        "Title. Scores of the query of “it” (weights): He 0 (0.33), sees 0 (0.33), it 0 (0.33); masked: now.",
    ),
    "by depth": (
        plots.by_depth(
            {
                "one": {"vanishing": [1e-9, 1e-4, 0.9]},
                "two": {"vanishing": [0.0, 1.0], "gone": [float("nan"), float("inf")]},
            },
            "Title",
            "norm",
            lowest=1e-9,
            highest=1e6,
        ),
        "norm, from the first block to the last: one: vanishing 10^-9 to 10^0; two: vanishing below 10^-9 "
        "to 10^0, gone nan to above 10^6.",
    ),
    "placements": (
        plots.placements(
            [{"pipe": 2, "data": 2, "model": 2}, {"model": 2, "data": 2, "pipe": 2}], 4, "Title"
        ),
        "pipe, data, model: pipe 4, data 0, model 0; model, data, pipe: model 4, data 0, pipe 0.",
    ),
    "rank grid": (
        plots.rank_grid([[0, 1], [2, 3]], ("host", "gpu"), "Title"),
        "of one host: 0, 1; 2, 3. Groups down, of one gpu: 0, 2; 1, 3.",
    ),
    "sharded elements": (
        plots.sharded_elements(
            {"by rows": lambda shape, ranks: [0] * 4 + [1] * 2}, {"w": (3, 2)}, 2, "Title"
        ),
        "Elements on ranks 0 to 1. by rows: w 4, 2.",
    ),
    "divided block": (
        plots.divided_block(
            {
                "hidden_size": 8,
                "intermediate_size": 24,
                "num_attention_heads": 4,
                "num_key_value_heads": 2,
            },
            16,
            5.0,
            "Title",
        ),
        "half of the rows of q, k and v (8, 4 and 4 rows of 8), of gate and up (24 rows of 8), half of the "
        "columns of out and down, and 2 of 4 heads; both repeat the norms and the additions. 5 MB are summed",
    ),
    "both cuts": (
        plots.both_cuts(torch.tensor([[1, 2]]), torch.tensor([[3, 4], [5, 6]]), torch.eye(2).long(), "Title"),
        "Y [[13, 16]]; B [[1, 0], [0, 1]]. Each rank has half of the columns of A and Y, and half of the "
        "rows of B. Rank 0's part of Z [[13, 0]], rank 1's [[0, 16]], Z [[13, 16]].",
    ),
    "stacked heads": (
        plots.stacked_heads(
            {"by heads": [0, 0, 1, 1, 0, 1], "in the middle": [0, 0, 0, 1, 1, 1]}, {"q": 4, "k": 2}, "Title"
        ),
        "by heads: rank 0 q 0 1, k 0; rank 1 q 2 3, k 1. in the middle: rank 0 q 0 1 2; rank 1 q 3, k 0 1.",
    ),
    "shared tokens": (
        plots.shared_tokens("Title"),
        "and sequence parallel: norm (s/t, h), f (forward all-gather, backward reduce-scatter), qkv, heads "
        "(s, h/t), out (s, h), a summand, g (forward reduce-scatter, backward all-gather), + (s/t, h).",
    ),
    "shared seconds": (
        plots.shared_seconds(
            {
                "t = 1": {"divided": 0.02, "repeated": 0.004, "messages": 0.0},
                "t = 2": {"divided": 0.01, "repeated": 0.004, "messages": 0.001},
            },
            0.024,
            "Title",
        ),
        "t = 1: 24.0 ms (divided 20.0, repeated 4.0); t = 2: 15.0 ms (divided 10.0, repeated 4.0, messages 1",
    ),
    "recorded beside them": (
        plots.shared_seconds(
            {"t = 2": {"divided": 0.01, "repeated": 0.004, "messages": 0.001}},
            0.024,
            "Title",
            {"t = 2": {"seconds": 0.016, "clock": 0.0181, "kernels": 161}},
        ),
        "messages 1.0). Recorded: t = 2: busy 16.0 ms, by the clock 18.1 ms, 161 kernels.",
    ),
    "zero states": (
        plots.zero_states(
            {"ZeRO": {"parameters": 2, "gradients": 0.5}}, {"parameters": 2, "gradients": 2}, 4, "Title"
        ),
        "Bytes per parameter on each of 4 ranks. ZeRO: parameters 2 of 2, gradients 0.5 of 2; together 2.5.",
    ),
    "step strips": (
        plots.step_strips(
            {
                "a": [
                    ("backward", "backward", 5, 1),
                    ("all-reduce", "mean", 2, 1),
                    ("optimizer", "step", 1, 1),
                ]
            },
            [0, 1],
            "Title",
            "ms",
        ),
        "Title. a: backward 5, mean 2, step 1; ms.",
    ),
    "held and sent": (
        plots.held_and_sent(
            {"a": [(0, 1), (1, 3)], "b": [(0, 2)]},
            {"a": [(1, 2), (2, 3), (4, 5)], "b": [(4, 5)]},
            "Title",
            "GB",
            {"1": (0, 2), "2": (2, 4)},
            ("room: 4", 4),
        ),
        "Title. GB: a at most 3, first at 1; b at most 2, first at 0. The line: room: 4. Times of sending: "
        "a 2; b 1.",
    ),
    "flat buckets": (
        plots.flat_buckets({"a": 3, "b": 6}, 5, {"bucket 1": ["b"], "bucket 2": ["a"]}, "Title"),
        "flat tensor: 5 elements of rank 0, 4 elements of rank 1; bucket 1: 2 elements of rank "
        "0, 4 elements of rank 1; bucket 2: 3",
    ),
    "reductions in a step": (
        plots.reductions_in_a_step({"late": (False, True), "early": (True, True)}, "Title"),
        "Title, units of time. late: 13 until 12; early: 16 until 13.5.",
    ),
    "category over time": (
        plots.category_over_time(
            {
                "a": History({"gradients": [0, 2, 8] * 9}, [(0, "x"), (13, "y")]),
                "b": History({"gradients": [4] * 20}),
            },
            "Title",
        ),
        "Gradients over time: a at most 8 bytes; b at most 4 bytes.",
    ),
    "construction": (
        plots.construction({"a": 8, "b": 4, "c": 2}, 4, "b", "Title"),
        "b has just been built, 2 of 3 modules. in full on every rank: 12 elements on each rank; "
        "partitioned as it is built: 6 elements",
    ),
    "shares": (plots.share_bars({"tiny": {"a": 3, "b": 2}}, "Title", "%"), "a 60.0 %"),
}


@pytest.mark.parametrize("name", FIGURES)
def test_picture_alternative_text_and_caption(name):
    plot, words = FIGURES[name]
    bundle = plot._repr_mimebundle_()
    sentence, page = bundle["text/plain"], bundle["text/html"]
    assert sentence.startswith("Figure: Title") and words in sentence
    shown = html.escape(sentence)
    assert (
        f'<img alt="{shown}"' in page
        and page.count(shown) == 2
        and page.rstrip().endswith(f"{shown}</figcaption></figure>")
    )
    assert picture(page) == plot.png and plot.png.startswith(b"\x89PNG")
    assert set(bundle) == {"text/html", "text/plain"}


def test_what_a_sentence_says_is_no_html():
    plot = plots.time_bars({'<b>"a" & b': 1}, "Title")
    assert "&lt;b&gt;&quot;a&quot; &amp; b 1 seconds" in plot._repr_mimebundle_()["text/html"]


def test_pictures_are_white_and_small():
    """White, so that black words are readable on a dark page too; small, since notebooks store them."""
    from PIL import Image

    image = Image.open(io.BytesIO(FIGURES["memory over time"][0].png))
    assert image.convert("RGB").getpixel((0, 0)) == (255, 255, 255) and image.mode == "P"
    assert all(len(plot.png) < 40_000 for plot, _ in FIGURES.values())


def test_the_same_data_make_the_same_picture():
    first, second = (plots.memory_bars({"": {"a": STATES}}, "Title").png for _ in range(2))
    assert first == second


def test_more_lines_than_colours_are_all_drawn_and_differ():
    names = [f"line {index}" for index in range(8)]
    plot = plots.curves(
        {name: ([1, 2], [3, 4]) for name in names},
        "Title",
        "x",
        "y",
        points={name: ([1], [3]) for name in names},
    )
    (axes,) = plot.figure.axes
    looks = {(line.get_color(), line.get_linestyle(), line.get_marker()) for line in axes.lines}
    assert len(axes.lines) == len(looks) == 16
    assert all(f"{name} ends at" in plot.sentence for name in names)
    with pytest.raises(ValueError, match="24 lines can be told apart, not 25"):
        plots.curves({str(index): ([1], [1]) for index in range(25)}, "Title", "x", "y")


TIMELINES = [  # of two ranks: (kind, stage, micro-batch, start, end); with two chunks on rank 0
    [("F", 0, 0, 5, 6), ("F", 2, 0, 7, 8), ("I", 2, 0, 8, 9), ("W", 2, 0, 9, 10)],
    [("F", 1, 0, 6, 7), ("B", 1, 0, 10, 13)],
]


def test_a_schedule_has_a_box_for_every_action_and_below_it_what_is_in_flight():
    plot = plots.pipeline_schedules({"One": TIMELINES, "Two": TIMELINES[:1]}, "Title", "slots")
    above, below, *_ = plot.figure.axes
    boxes = [(box.get_x(), round(box.get_y()), box.get_width(), box.get_alpha()) for box in above.patches]
    expected = [
        (start - 5, rank, end - start, 1 if stage < 2 else 0.55)
        for rank, row in enumerate(TIMELINES)
        for _, stage, _, start, end in row
    ]
    assert boxes == expected
    assert [text.get_text() for text in above.get_legend().get_texts()] == [
        "forward",
        "backward",
        "backward: input",
        "backward: weights",
    ]
    assert len(below.collections) == 2 and {axes.get_xlim() for axes in plot.figure.axes} == {(0, 8)}
    one = "One: 8 slots, idle 0.500 of the time, at most 1, 1 in flight"
    assert (
        plot.sentence == f"Figure: Title. {one}; Two: 5 slots, idle 0.200 of the time, at most 1 in flight."
    )


def test_narrow_boxes_of_a_schedule_keep_their_colour():
    wide, narrow = ([("F", 0, micro, micro, micro + 1) for micro in range(count)] for count in (8, 400))
    for row, edge in ((wide, 1), (narrow, 0.25)):
        plot = plots.pipeline_schedules({"One": [row]}, "Title", "slots", in_flight=False)
        assert plot.figure.axes[0].patches[0].get_linewidth() == edge


def test_schedules_are_drawn_without_what_is_in_flight():
    plot = plots.pipeline_schedules({"One": TIMELINES}, "Title", "slots", in_flight=False)
    assert len(plot.figure.axes) == 1
    assert plot.sentence == "Figure: Title. One: 8 slots, idle 0.500 of the time."


def test_stages_say_which_layers_they_hold():
    plot = plots.stages({"rank 0": ["embedding", "block 1"], "rank 1": ["block 2", "head"]}, "Title", "50 MB")
    (axes,) = plot.figure.axes
    assert len([box for box in axes.patches if box.get_alpha()]) == 2
    assert plot.sentence.startswith(
        "Figure: Title. rank 0: embedding, block 1; rank 1: block 2, head. Between neighbours"
    )
    assert plot.sentence.endswith("gradients back, 50 MB each.")


def test_a_stage_without_a_first_line_is_drawn_smaller():
    plot = plots.stages({"rank 0": ["embedding", "block 1"], "rank 1": ["", "block 2"]}, "Title", "50 MB")
    first, second = (box for box in plot.figure.axes[0].patches if box.get_alpha())
    assert first.get_height() == second.get_height() + 1


def test_every_category_has_a_look_of_its_own():
    assert set(plots.LOOK) == set(CATEGORIES)
    assert len({colour for colour, _ in plots.LOOK.values()}) == len(plots.LOOK)


def test_phases_are_equally_wide_and_cover_every_event():
    places, names = plots.phases(HISTORY)
    assert len(places) == len(HISTORY.total)
    assert names == ["forward", "backward"]
    assert places[0] == 0 and places[30] == 1 and places[-1] == 2


def test_changes_that_cannot_be_seen_take_little_of_a_phase():
    history = History(
        {"other": [1_000_000 + at % 2 for at in range(80)] + [2_000_000, 1_000_000] * 10}, [(0, "step")]
    )
    places, _ = plots.phases(history)
    assert places[0] == 0 and places[-1] == 1 and places == sorted(places)
    assert places[79] < 0.1  # four fifths of the events, of a byte each


def test_the_digits_of_a_sum_say_who_is_in_it():
    assert (
        plots.contributors(4000) == [3]
        and plots.contributors(1101) == [0, 2, 3]
        and plots.contributors(0) == []
    )


def test_boxes_that_overlap_are_drawn_in_lanes_of_their_own():
    boxes = [
        ("all-reduce", "1", 0, 4),
        ("all-reduce", "2", 1, 5),
        ("all-reduce", "3", 4, 6),
        ("all-reduce", "4", 4.5, 6),
    ]
    assert side_by_side(boxes) == [0, 1, 0, 2]
    plot = plots.timeline({"work": [("backward", "", 0, 3)], "sending": boxes}, "Title", "milliseconds")
    assert plot.sentence == "Figure: Title, milliseconds. work: 1 until 3; sending: 4 until 6."


def test_every_kind_that_a_clock_notes_has_a_look():
    assert {*WORK, *MESSAGES.values(), "waiting"} <= set(KINDS) and set(SENT) < set(KINDS)
    assert len(set(KINDS.values())) == len(KINDS)


def test_a_kind_of_box_without_a_look_is_refused():
    with pytest.raises(
        ValueError, match="kinds of boxes are forward, backward, .*, waiting, barrier; not dancing"
    ):
        plots.timeline({"work": [("dancing", "", 0, 1)]}, "Title", "ms")


def test_a_roofline_refuses_what_it_cannot_draw():
    with pytest.raises(ValueError, match="must be positive, and are not for nothing"):
        plots.roofline(MACHINE, {"nothing": (0, 1)}, "Title")
    with pytest.raises(ValueError, match="24 points can be told apart, not 25"):
        plots.roofline(MACHINE, {str(index): (1, 1) for index in range(25)}, "Title")
    with pytest.raises(ValueError, match="no matrix rate was measured for 'fp32'"):
        plots.roofline(MACHINE, {}, "Title", dtype="fp32")


def test_a_roof_breaks_at_its_ridge():
    (axes,) = plots.roofline(MACHINE, {"low": (0.1, 1e10)}, "Title").figure.axes
    (left, corner, right), rates = axes.lines[0].get_data()
    assert left == 0.05 and corner == 100 and list(rates) == [0.05, 100, 100]


def test_what_lasts_through_a_step_is_drawn_below_what_comes_and_goes():
    history = History(
        {category: [10] * 30 for category in ("parameters", "gradients", "optimizer states")},
        [(0, "forward")],
    )
    axes = plots.memory_over_time(history, "Title").figure.axes[0]
    assert axes.get_legend_handles_labels()[1] == ["parameters", "optimizer states", "gradients"]


def test_the_highest_moment_is_marked_and_the_capacity_is_a_line_that_is_said():
    history = History(
        {"parameters": [10] * 30, "other": [0] * 20 + [7] + [0] * 9}, [(0, "forward"), (15, "backward")]
    )
    drawn = plots.memory_over_time(history, "Title", capacity=40, peak=True)
    (axes,) = drawn.figure.axes
    (marked,) = [line for line in axes.lines if line.get_label() == "highest moment"]
    assert (
        list(marked.get_ydata()) == [17]
        and 1 < marked.get_xdata()[0] < 2
        and "17.0 bytes" in [text.get_text() for text in axes.texts]
    )
    (limit,) = [line for line in axes.lines if line.get_label() == "capacity, 40 bytes"]
    assert (
        set(limit.get_ydata()) == {40}
        and axes.get_ylim()[1] > 40
        and drawn.sentence.endswith("back to 10 bytes, capacity 40 bytes.")
    )


def test_maps_with_other_cells_and_too_many_kinds_are_refused():
    with pytest.raises(ValueError, match="the same columns and rows"):
        plots.heat_maps({"a": {("1", "1"): None}, "b": {("2", "1"): None}}, "Title", "x", "y")
    with pytest.raises(ValueError, match="kinds can be told apart, not 9"):
        plots.heat_maps({"a": {("1", str(row)): (f"kind {row}", "") for row in range(9)}}, "Title", "x", "y")
    with pytest.raises(ValueError, match="estimators can be told apart, not 9"):
        plots.errors({"a": dict.fromkeys(map(str, range(9)), 1.0)}, "Title")


def many(number, *values):
    return {f"line {index}": values for index in range(number)}


TOO_MANY = {
    "lines": (lambda number: plots.curves(many(number, [1, 2], [3, 4]), "Title", "x", "y"), 24),
    "points": (lambda number: plots.curves({}, "Title", "x", "y", points=many(number, [1, 2], [3, 4])), 24),
    "crossings": (
        lambda number: plots.curves(
            many(1, [1, 2], [3, 4]), "Title", "x", "y", crossings=many(number, [1], [3])
        ),
        4,
    ),
    "histories": (
        lambda number: plots.category_over_time(
            {f"{at}": History({"gradients": [4] * 20}) for at in range(number)}, "Title"
        ),
        4,
    ),
    "lines of lost time": (
        lambda number: plots.lost_time(many(number, [1, 10], [0.5, 0.1]), many(number, 2, 0.2), "Title"),
        6,
    ),
}


@pytest.mark.parametrize("what", TOO_MANY)
def test_more_than_can_be_told_apart_are_refused_and_none_is_left_out(what):
    draw, most = TOO_MANY[what]
    assert draw(most).png
    said = (
        rf"^{most} {what.split()[0]} can be told apart, not {most + 1} \(.*{most}\): draw fewer, or "
        r"several figures$"
    )
    with pytest.raises(ValueError, match=said):
        draw(most + 1)


@pytest.mark.parametrize("events", (2, 3, 9))
def test_a_short_history_has_its_phases_too(events):
    history = History({"gradients": list(range(events))}, [(0, "forward"), (events // 2, "backward")])
    places, names = plots.phases(history)
    assert len(places) == events and places == sorted(set(places)) and places[-1] == len(names)
    assert names == (["forward", "backward"] if events > 2 else ["forward"])
    drawn = plots.category_over_time({"short": history}, "Title")
    assert (
        drawn.sentence == f"Figure: Title. Gradients over time: short at most {events - 1} bytes."
        and drawn.png
    )
    assert list(drawn.figure.axes[0].lines[0].get_ydata()) == list(range(events))


def test_one_event_is_no_course_over_time():
    with pytest.raises(ValueError, match="at least two events, not 1: take more of the ledger's history"):
        plots.category_over_time({"short": History({"gradients": [4]})}, "Title")


def test_losses_of_seeds_are_held_beside_those_of_one_way():
    losses = {"fp32": [[3.0, 2.0], [3.0, 2.5]], "bf16": [[3.1, 2.3], [3.1, 2.6]]}
    assert "by seed: bf16 0.1 to 0.2." in plots.over_seeds(losses, "Title", "fp32").sentence
    with pytest.raises(LookupError, match="no way is called 'fp16'; there are fp32, bf16"):
        plots.over_seeds(losses, "Title", "fp16")


@pytest.mark.parametrize("ranks", [2, 4, 8, 64])
def test_two_trees_have_every_rank_inside_one_and_send_at_most_twice_the_tensor(ranks):
    """Each tree carries half of the tensor: up to the parent, and down to each child."""
    tree = parents(ranks)
    trees = tree, {ranks - 1 - rank: ranks - 1 - up for rank, up in tree.items()}
    inside = [set(up.values()) for up in trees]
    assert not inside[0] & inside[1] and inside[0] | inside[1] == set(range(ranks))
    for rank in range(ranks):
        sent = sum(0.5 * (rank in up) + 0.5 * list(up.values()).count(rank) for up in trees)
        assert sent <= 2
    for up in trees:
        depth = max(len(list(climbed(rank, up))) for rank in range(ranks))
        assert depth == ranks.bit_length() - 1  # log2 N levels


def climbed(rank, up):
    while rank in up:
        rank = up[rank]
        yield rank
