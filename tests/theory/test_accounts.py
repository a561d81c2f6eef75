"""One account of time and one of the peak: what the planner, `ZeroPlan` and tensor parallelism say of the
same step; and numbers that all of them refuse."""

from dataclasses import replace

import pytest
from helpers import models, recorded, theory

SMALL = models.GPTSize(vocabulary=512, context=128, width=64, layers=16, heads=8)
CLUSTER = theory.Cluster(gpus=64, memory=80e9, rate=400e12, link=50e9, inside=450e9)


def plan(**changes):
    return theory.Plan(**({"size": SMALL, "gpus": 8, "batch": 64, "sequence": 128} | changes))


# --- micro-batches that fit and divide


@pytest.mark.parametrize(
    "own, at_once, expected",
    [(24, 21, 2), (24, 24, 1), (24, 5, 6), (23, 22, 23), (23, 23, 1), (64, 15, 8), (1, 9, 1)],
)
def test_a_micro_batch_fits_and_divides(own, at_once, expected):
    """Of 24 sequences of which 21 fit, two micro-batches of 12; a prime number of them goes one by one."""
    fits = theory.ZeroPlan(size=SMALL, cluster=replace(CLUSTER, gpus=2), stage=1)
    room = fits.states + fits.reserve + (at_once + 0.5) * fits.each
    fits = replace(fits, cluster=replace(CLUSTER, gpus=2, memory=room))
    assert fits.at_once == at_once
    assert fits.step(own * SMALL.context * 2)["micro-batches"] == expected


# --- which link a message takes


def test_a_pipeline_inside_one_host_stays_on_its_links():
    for ways in ({"pipeline": 2}, {"pipeline": 4, "tensor": 2}, {"pipeline": 8}):
        near, far = plan(**ways), plan(**ways, **{"gpus": 16})
        sent = 2 * near.micro_batches * near.unit / near.tensor
        assert theory.plan_seconds(near, CLUSTER)["pipeline"] == pytest.approx(sent / 450e9)
        sent = 2 * far.micro_batches * far.unit / far.tensor
        assert theory.plan_seconds(far, CLUSTER)["pipeline"] == pytest.approx(sent / 50e9)
    small_hosts = replace(CLUSTER, host=4)
    assert theory.plan_seconds(plan(pipeline=2), small_hosts)["pipeline"] == pytest.approx(
        2 * plan(pipeline=2).micro_batches * plan(pipeline=2).unit / 50e9
    )


def test_replicas_of_a_stage_that_lies_in_one_host_stay_in_it():
    """Stages are outermost: with 64 GPUs in 8 stages each has a host of its own, with 4 it has two."""
    for pipeline, tensor, bandwidth in (
        (8, 4, 450e9),
        (8, 2, 450e9),
        (16, 2, 450e9),
        (4, 4, 100e9),
        (4, 1, 400e9),
    ):
        one = plan(gpus=64, batch=256, pipeline=pipeline, tensor=tensor, stage=1)
        sent = theory.zero_wire_bytes(one.parameters, one.replicas, 1, whole_buckets=True)
        assert theory.plan_seconds(one, CLUSTER)["ZeRO"] == pytest.approx(sent / bandwidth), (
            pipeline,
            tensor,
        )


@pytest.mark.parametrize(
    "ranks, stride, gpus, bandwidth",
    [
        (8, 1, 64, 450e9),
        (2, 4, 64, 450e9),
        (16, 1, 64, 400e9),
        (64, 1, 64, 400e9),
        (16, 4, 64, 100e9),
        (8, 8, 64, 50e9),
        (3, 1, 24, 400e9),  # neighbours 6, 7 and 8 lie in two hosts
        (3, 1, 6, 450e9),
        (2, 16, 32, 50e9),
    ],
)
def test_a_group_sends_at_the_rate_of_the_cards_that_it_has_in_a_host(ranks, stride, gpus, bandwidth):
    assert CLUSTER.bandwidth(ranks, stride, gpus) == bandwidth


# --- sequence parallelism


@pytest.mark.parametrize("checkpointed, plain, shared", [(False, 4, 5), (True, 6, 7)])
def test_sequence_parallelism_gathers_once_more_in_the_backward_pass(checkpointed, plain, shared):
    """Korthikanti et al., section 4.2.2: an all-gather and a reduce-scatter for each all-reduce, and the
    inputs of two sharded products are gathered again for their weights' gradients: 5 all-reduces for 4."""
    ways = {"tensor": 4, "checkpointed": checkpointed}
    for sequence_parallel, times in ((False, plain), (True, shared)):
        one = plan(**ways, sequence_parallel=sequence_parallel)
        sent = one.micro_batches * one.layers * times * theory.wire_bytes("all_reduce", one.unit, 4)
        assert theory.plan_seconds(one, CLUSTER)["tensor parallelism"] == pytest.approx(sent / 450e9)


def test_the_planners_messages_of_a_block_are_those_of_the_blocks_own_account():
    machine = theory.MachineConstants(matrix={"bf16": {64: 1e14}}, memory=1e12, launch=0.0, bandwidth=1e11)
    for sequence_parallel in (False, True):
        block = theory.tensor_parallel_block_seconds(
            1, 128, 64, 4, machine, sequence_parallel=sequence_parallel
        )["messages"]
        further = theory.tensor_parallel_block_seconds(
            1, 128, 64, 4, replace(machine, bandwidth=1e30), sequence_parallel=sequence_parallel
        )["messages"]
        one = plan(tensor=4, sequence_parallel=sequence_parallel)
        seconds = theory.plan_seconds(one, replace(CLUSTER, inside=1e11))["tensor parallelism"]
        assert seconds / one.micro_batches / one.layers == pytest.approx(block - further)


def test_bytes_and_turns_are_of_the_same_messages():
    """Each half of an all-reduce takes as many turns as there are ranks but one."""
    one = plan(tensor=4, stage=1)
    messages = theory.plan_messages(one)
    assert messages[:2] == [
        ("tensor parallelism", "all_gather", one.micro_batches * 16 * 6, 4),
        ("tensor parallelism", "reduce_scatter", one.micro_batches * 16 * 4, 4),
    ]
    assert theory.plan_latency(one, 1e-3)["tensor parallelism"] == pytest.approx(
        one.micro_batches * 16 * 10 * 3e-3
    )


# --- what is exposed, and what hides


def test_a_pass_hides_messages_as_far_as_it_lasts():
    assert [
        theory.Pass(4, 6, True).hidden,
        theory.Pass(4, 6, True).exposed,
        theory.Pass(4, 6, True).total,
    ] == [4, 2, 6]
    assert (
        theory.Pass(4, 3, True).total == 4
        and theory.Pass(4, 3).total == 7
        and theory.Pass(0, 3, True).total == 3
    )


def test_all_accounts_expose_the_same_of_zeros_messages():
    """By the planner and by `ZeroPlan`: the same bytes over the same link, and the same hidden."""
    cluster = theory.Cluster(gpus=8, memory=80e9, rate=1e12, link=1e9)
    for stage in (0, 1, 2):
        mine = plan(stage=stage, micro=8, batch=8 * 8)
        parts, exposed = (theory.plan_seconds(mine, cluster, hidden=hidden) for hidden in (False, True))
        theirs = theory.ZeroPlan(size=SMALL, cluster=cluster, stage=stage).step(8 * 8 * SMALL.context)
        parameters = theory.gpt_parameters(SMALL)
        assert theirs["messages"] * mine.parameters / parameters == pytest.approx(parts["ZeRO"])
        assert exposed["ZeRO"] == max(0, parts["ZeRO"] - parts["work"])
        assert {name: parts[name] for name in parts if name != "ZeRO"} == {
            name: exposed[name] for name in exposed if name != "ZeRO"
        }


# --- hardware


def test_every_number_of_the_reference_hardware_says_where_it_is_from():
    for device, numbers in theory.HARDWARE.items():
        for name, number in numbers.items():
            assert number.label in ("recorded", "data sheet", "assumed") and number.source and number.unit, (
                name
            )
            assert number.value > 0, device
    assert theory.PEAKS["NVIDIA H200"] == 989e12


def test_the_reference_cluster_is_one_host_of_eight():
    host, eight = theory.reference_cluster(), theory.reference_cluster(hosts=8)
    assert (host.gpus, eight.gpus, host.host) == (8, 64, 8)
    assert host.within == 300e9 and host.link * host.host == 400e9 and host.memory == 85.0e9
    assert 277e9 <= host.within <= 340e9, "within what was recorded"
    assert recorded.machine(2).bandwidth == pytest.approx(277e9, rel=0.01)
    assert theory.reference_cluster(hosts=2, memory=80e9).memory == 80e9
    with pytest.raises(ValueError, match="hosts must be at least 1"):
        theory.reference_cluster(hosts=0)


# --- what is refused


@pytest.mark.parametrize("name", ["gpus", "batch", "sequence", "micro", "tensor", "pipeline", "ulysses"])
@pytest.mark.parametrize("number", [0, -1, 1.5, None, float("inf")])
def test_a_plan_of_nothing_is_refused_in_words(name, number):
    with pytest.raises(
        ValueError if isinstance(number, int) else TypeError, match=f"{name} must be at least 1"
    ):
        plan(**{name: number})


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"bucket": -1}, "bucket must be at least 0"),
        ({"trained": float("nan")}, "trained is a share"),
        ({"sequence": 126, "tensor": 4}, "126 tokens cannot be divided among 4 ranks"),
        ({"batch": 63}, "63 sequences are no whole number of micro-batches of 1 on 8 replicas"),
        ({"micro": 3}, "64 sequences are no whole number of micro-batches of 3 on 8 replicas"),
        ({"stage": -1}, "stage must be from 0 to 3, not -1"),
    ],
)
def test_other_plans_that_cannot_be_say_why(changes, words):
    with pytest.raises(ValueError, match=words):
        plan(**changes)


def test_without_sequence_parallelism_the_tokens_need_not_divide():
    assert theory.needed_bytes(plan(sequence=126, tensor=4, sequence_parallel=False)) > 0


@pytest.mark.parametrize("name", ["memory", "rate", "link", "inside"])
@pytest.mark.parametrize("number", [0, -1.0, float("nan")])
def test_a_cluster_of_nothing_is_refused(name, number):
    with pytest.raises(ValueError, match=f"{name} must be positive"):
        replace(CLUSTER, **{name: number})


@pytest.mark.parametrize("name", ["gpus", "host"])
def test_a_cluster_without_gpus_is_refused(name):
    with pytest.raises(ValueError, match=f"{name} must be at least 1"):
        replace(CLUSTER, **{name: 0})


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: theory.all_plans(SMALL, 8, 64, 128, micros=(0, 1)), "micro must be at least 1"),
        (lambda: theory.all_plans(SMALL, 0, 64, 128), "gpus must be at least 1"),
        (lambda: theory.all_plans(SMALL, 8, 64, 128, stages=(7,)), "stage must be from 0 to 3, not 7"),
        (lambda: theory.plan_latency(plan(), -1), "latency must not be negative"),
        (
            lambda: theory.ZeroPlan(size=SMALL, cluster=CLUSTER, stage=1, buckets=-1),
            "buckets must not be negative",
        ),
        (
            lambda: theory.ZeroPlan(size=SMALL, cluster=CLUSTER, stage=1).step(0),
            "no whole number of sequences",
        ),
        (lambda: theory.zero_wire_bytes(1, 2, 2, accumulation=0), "accumulation must be at least 1"),
        (lambda: theory.zero_3_passes(1, 2, 1e12, 8, micro_batches=0), "micro_batches must be at least 1"),
        (lambda: theory.zero_3_passes(1, 2, 0, 8, micro_batches=1), "rate must be positive"),
        (lambda: theory.step_messages(10, 1, theory.ZeroConfig(), 0), "ranks must be at least 1"),
        (lambda: theory.step_messages(10, 1, theory.ZeroConfig(), 2, 0), "accumulation must be at least 1"),
        (lambda: theory.hours_between_failures(1, 0), "units must be positive"),
    ],
)
def test_other_numbers_that_mean_nothing_are_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def test_huge_plans_are_finite():
    size = models.GPTSize(vocabulary=2**20, context=2**20, width=2**17, layers=1000, heads=1024)
    one = theory.Plan(size=size, gpus=2**20, batch=2**20, sequence=2**20, stage=3, micro=1, checkpointed=True)
    assert 0 < theory.needed_bytes(one) < float("inf")
    assert 0 < sum(theory.plan_seconds(one, CLUSTER).values()) < float("inf")


# --- one account of the peak


def test_the_peak_of_a_step_has_three_moments_whatever_counts_its_states():
    states = {
        "after step": {"parameters": 2.0},
        "between micro-batches": {"parameters": 2.0, "gradients": 1.0},
        "after backward": {"parameters": 2.0, "gradients": 3.0},
    }
    found = theory.peak_moments(
        states, activations=10, again=5, step={"parameters": 2.0, "other": 4}, accumulates=True
    )
    assert {name: sum(sizes.values()) for name, sizes in found.items()} == {
        "loss": 13,
        "backward": 10,
        "step": 6,
    }
    once = theory.peak_moments(states, activations=10, again=5, step={}, accumulates=False)
    assert sum(once["loss"].values()) == 12 and "gradients" not in once["loss"]


def test_the_recordings_and_the_planner_ask_the_same_function():
    """What is kept at the loss is one number for both: of a recorded run and of its plan."""
    run = next(
        run for run in recorded.trainings() if run.experiment == "speed" and run.arguments["stage"] == 1
    )
    exact, mine = recorded.predicted_peaks(run), theory.moments(recorded.plan(run))
    assert exact["at the loss"] == pytest.approx(mine["loss"], rel=0.01)
    assert exact["in the step"] == pytest.approx(mine["step"], rel=0.01)
