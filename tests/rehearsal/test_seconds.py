"""Seconds of a rehearsed step: beside recorded runs, beside theory's own account, and by hand."""

import json
import os
from pathlib import Path

import pytest
from helpers import preload, recorded, rehearse, theory
from helpers.course.recording import links
from helpers.course.recording.in_ranks import built, engine_of
from helpers.tools.forecast import pace
from helpers.tools.forecast.command_line import main
from helpers.tools.measure.operations import Message
from helpers.tools.rehearsal import question, seconds
from helpers.tools.rehearsal.diary import Diary
from helpers.tools.rehearsal.fitting import two_steps
from helpers.tools.rehearsal.working import listening, of_a_step, work
from tests.rehearsal.test_command import LLAMA, ask
from tests.support import configuration

H200 = {"hardware": "2 x NVIDIA H200"}
ALL = "REHEARSE_ALL" in os.environ
H100 = json.loads((Path(__file__).parent / "traces/passes-H100.json").read_text())


def steps(size, sequences, micro_batches, checkpointing, config):
    """In a rehearsed rank: the work of a step of the experiment `speed`."""
    import torch
    from deepspeed import init_distributed
    from helpers.tools.measure.ledger import Ledger

    init_distributed()
    with Ledger(), listening():
        engine = engine_of(built(size, config, checkpointing), config)
        ids = torch.zeros((sequences, size.context), dtype=torch.int64, device=engine.device)
        for _ in range(2 * micro_batches):
            work.begin("forward")
            loss = engine(ids, ids)
            work.begin("backward")
            engine.backward(loss)
            del loss
            work.begin("step")
            engine.step()
        work.begin("")
    return of_a_step(work.passes, micro_batches, micro_batches)


def told(run, card="H200"):
    """`Seconds` of a recorded run, rehearsed."""
    of = {"sequences": links.SEQUENCES, "micro_batches": 1, "checkpointing": False}
    of = {name: run.arguments.get(name, value) for name, value in of.items()}
    arguments = of | {"size": run.size, "config": run.configuration}
    counts = rehearse(steps, run.ranks, 0, arguments, device="cuda")
    asked = question.ask({"layers": 1}, run.configuration, run.ranks, 8)
    report = {"work": counts, "sizes": run.elements, "expert_sizes": [], "kinds": {"frozen": {}}}
    return seconds.seconds(asked, report, card)


CASES = {}
for run in recorded.runs("speed", **H200):
    if run.reports and not run.arguments["compiled"] and run.arguments["change"] != "offload":
        CASES.setdefault(recorded.case(run), run)
FEW = [  # one in which messages may hide, one whose blocks are checkpointed, one bound by its host
    run
    for run in CASES.values()
    if (run.ranks, run.arguments["stage"], run.arguments["size"]) == (2, 3, "7.5B, padded")
    or (run.arguments["sequences"], run.arguments["change"]) == (1, "")
]
# Of its own steps some took 1.7 times as long as others: two GPUs that wait for two hosts
RESTLESS = {"ranks": 2, "stage": 3, "sequences": 16, "micro_batches": 1, "size": "1.5B, padded"}


@pytest.mark.ranks
@pytest.mark.parametrize("run", CASES.values() if ALL else FEW, ids=lambda run: str(run.known))
def test_a_recorded_step_lies_within_the_range(run):
    of = {name: value for name, value in run.arguments.items() if name != "start"}
    real, found = recorded.step_time(recorded.runs("speed", ranks=run.ranks, **H200, **of)), told(run)
    fastest, slowest = found.both
    print(f"{real.median:.3f} s recorded, {fastest:.3f} to {slowest:.3f} told")
    if RESTLESS.items() <= run.known.items():
        assert fastest < real.median and real.lowest < slowest
        return
    assert fastest <= real.median <= slowest
    assert slowest < 2.1 * fastest or found.fastest.launch_bound
    assert seconds.REACHED - 0.005 < found.computing / real.work <= 1 or real.launch_bound


OVER_NVLINK = recorded.runs("links", link="NVLink", hardware="2 x NVIDIA H100 80GB HBM3")
SOME = [run for run in OVER_NVLINK if run.arguments["micro_batches"] == 8 and not run.arguments["change"]]


@pytest.mark.ranks
@pytest.mark.parametrize("run", OVER_NVLINK if ALL else SOME, ids=lambda run: str(run.known))
def test_steps_with_one_change_on_h100s(run):
    """Stage 2 sends in every micro-batch, and takes up to a sixth longer than its slowest end; one case of
    stage 3 is bound by its host."""
    real, (fastest, slowest) = recorded.step_time([run]).median, told(run, "H100 80GB").both
    print(f"{real:.3f} s recorded, {fastest:.3f} to {slowest:.3f} told")
    assert fastest <= real <= slowest * (1.18 if run.arguments["stage"] > 1 else 1.01)


@pytest.mark.ranks
def test_the_work_is_that_of_theorys_own_account():
    (run,) = [
        run
        for run in CASES.values()
        if run.known.items() >= {"ranks": 2, "stage": 1, "sequences": 32, "micro_batches": 1}.items()
    ]
    machine = theory.MACHINES["H200"]
    exact = theory.step_seconds(run.size, machine, config=run.configuration, ranks=run.ranks)
    found = told(run)
    others = ("matrix products", "attention", "elementwise", "embedding and loss", "gradients", "optimizer")
    assert found.computing == pytest.approx(sum(exact.parts[part] for part in others), rel=0.01)
    assert sum(found.messages.values()) == pytest.approx(exact.parts["messages"], rel=0.01)


@pytest.mark.ranks
@pytest.mark.parametrize("row", H100["passes"] if ALL else H100["passes"][2:3], ids=lambda row: row["model"])
def test_passes_of_models_of_transformers_on_an_h100(row):
    preload("transformers.LlamaForCausalLM", "transformers.Qwen3ForCausalLM")
    config = {"bf16": {"enabled": True}}
    given = (1, row["tokens"], row["sequences"], row["checkpointing"])
    asked = question.ask(H100["models"][row["model"]], config, *given)
    report = rehearse(two_steps, 1, 0, {"question": asked}, device="cuda")
    report["work"]["step"].clear()  # the optimizer was not recorded
    fastest, slowest = seconds.seconds(asked, report, "H100 80GB").both
    assert fastest <= (row["forward"] + row["backward"]) / 1e3 <= slowest < 1.6 * fastest


@pytest.mark.parametrize("name", ["H100 80GB", "H200"])
def test_constants_of_cards_are_those_recorded(name):
    """To three digits; of an H200 the worse of two ranks."""
    mine = theory.MACHINES[name]
    real = (
        theory.MachineConstants(**H100["constants"]) if name == "H100 80GB" else recorded.machine(2, **H200)
    )
    for dtype, rates in real.matrix.items():
        assert mine.matrix[dtype] == pytest.approx(rates, rel=0.01)
    assert mine.misaligned == pytest.approx(real.misaligned, rel=0.01)
    for part in ("memory", "launch", "call"):
        assert getattr(mine, part) == pytest.approx(getattr(real, part), rel=0.01)
    for dtype, rate in real.attention.items():
        assert mine.attention_rate(dtype) == pytest.approx(rate, rel=0.04)
    for (_, _, tokens, channels), rate in H100["attention"]:
        assert mine.attention_rate("bf16", tokens * channels) == pytest.approx(rate, rel=0.16)
    if name == "H200":
        assert (mine.bandwidth, mine.latency) == pytest.approx((real.bandwidth, real.latency), rel=0.01)


def test_a_card_by_its_data_sheet_is_labelled():
    a100 = theory.MACHINES["A100 80GB"]
    assert "assumed" in a100.name and a100.peak() == pytest.approx(715e12 * 312 / 989)


# --- by hand


def asked(stage=3, ranks=16, accumulation=1, **zero):
    config = configuration(stage, accumulation=accumulation, **{"overlap_comm": True} | zero)
    return question.ask({"layers": 2}, config, ranks, 64)


def message(size, ranks=16):
    return Message("all_gather_into_tensor", size, tuple(range(ranks)))


def report(forward, backward=(), step=()):
    counts = {"forward": dict(forward), "backward": dict(backward), "step": dict(step)}
    return {"work": counts, "sizes": [], "expert_sizes": [], "kinds": {"frozen": {}}}


MACHINE = theory.MACHINES["H100 80GB"]
PRODUCT = ("product", 8192, 8192, 8192, "bf16")


def test_a_pass_by_hand():
    """A product, attention half of whose scores are needed, a gigabyte that is moved, and a gigabyte from
    each of 16 ranks on two hosts."""
    forward = {PRODUCT: 3, ("attention", 2**20, "bf16", True): 2e15, ("moved",): 1e9, message(10**9): 1}
    found = seconds.seconds(asked(), report(forward), "H100 80GB", host_network=100e9)
    work_seconds = 3 * 2 * 8192**3 / 686e12 + 1e15 / 497e12 + 1e9 / 3.04e12
    sent = 15e9 / 100e9 + 4 * 26e-6
    assert found.computing == pytest.approx(work_seconds)
    assert found.messages == pytest.approx({"all_gather_into_tensor": sent})
    assert found.fastest.total == pytest.approx(work_seconds) and found.fastest.hidden == pytest.approx(sent)
    assert found.slowest.total == pytest.approx(work_seconds / seconds.REACHED + sent)
    assert found.needed == 3 * (3 * 2 * 8192**3 + 2e15)


@pytest.mark.parametrize(
    "stage, zero, hidden", [(3, {}, 1), (3, {"overlap_comm": False}, 0), (2, {}, 0), (0, {}, 0)]
)
def test_what_may_hide_is_what_deepspeed_lets(stage, zero, hidden):
    """In a forward pass stage 3 alone; stages 1 and 2 in the backward pass."""
    forward = {PRODUCT: 1000, message(10**8): 1}
    found = seconds.seconds(asked(stage, **zero), report(forward), "H100")
    assert found.fastest.hidden == hidden * sum(found.messages.values())
    backward = seconds.seconds(asked(2), report({}, {PRODUCT: 1000, message(10**8): 1}), "H100")
    assert backward.fastest.hidden == sum(backward.messages.values()) > 0


def test_inside_a_host_messages_take_nvlink():
    near, far = (
        seconds.seconds(asked(ranks=ranks), report({message(10**9, ranks): 1}), "A100 80GB", gpus_per_host=8)
        for ranks in (8, 16)
    )
    alone = [sum(one.messages.values()) for one in (near, far)]
    assert alone == pytest.approx([7e9 / 300e9 + 3 * 26e-6, 15e9 / 200e9 + 4 * 26e-6])


def test_a_host_that_is_slower_than_its_gpu_is_told():
    found = seconds.seconds(asked(1), report({}, {}, {("issued",): 10_000}), "H200")
    assert found.both == pytest.approx((10_000 * 8.6e-6, 10_000 * 25.8e-6)) and found.fastest.launch_bound


def test_micro_batches_that_were_not_rehearsed_count_again():
    passes = [(name, {("moved",): size}) for size in (10, 1) for name in ("forward", "backward", "step")]
    assert {name: counts[("moved",)] for name, counts in of_a_step(passes, 2, 5).items()} == dict.fromkeys(
        ("forward", "backward", "step"), 4 * 10 + 1
    )
    assert of_a_step(passes, 1, 1)["step"][("moved",)] == 1


def test_days_and_price_by_hand():
    """1,000 s a step of 16 x 64 tokens: 1,024,000 tokens take 1e6 s, on 16 GPUs 4,444 hours."""
    of = pace.Terms("H200", "", 1_024_000.0, 2.5, None)
    found = seconds.seconds(asked(), report({("moved",): 1000 * 4.37e12}), "H200")
    told = pace.Pace(of, found, 1024, 16, None)
    assert told.days[0] == pytest.approx(1e6 / 86400) and told.price[0] == pytest.approx(
        16 * 2.5 * 1e6 / 3600
    )
    assert told.lines()[2] == "1.024M tokens: 11.6 to 13.9 days"


# --- the command

WORDS = ("--ranks", "16", "--sequence", "32", "--micro-batch", "2", "--only-rank", "0")
REFUSED = [
    (("--gpu", "4090", "--tokens", "1T"), "no constants are known of RTX 4090 24GB, only of H100 80GB"),
    (("--tokens", "1T"), "--tokens asks for seconds, and seconds are unknown: name a GPU with --gpu"),
    (("--gpu-memory", "80GB", "--host-network", "1GB/s"), "--host-network asks for seconds"),
    (("--gpu", "H200", "--tokens", "1T", "--price", "0"), "a price is dollars above 0, as 2.5, not '0'"),
    (("--gpu", "H200", "--price", "2"), "say with --tokens how many tokens"),
    (("--gpu", "H200", "--tokens", "1X"), "written as 1T, 15B or 3e11, not '1X'"),
    (("--gpu", "H200", "--tokens", "0T"), "written as 1T"),
    (("--gpu", "H200", "--host-network", "400Gb/s"), "written as 400GB/s, in bytes"),
]


@pytest.mark.parametrize("more, words", REFUSED)
def test_what_has_no_seconds_is_refused(tmp_path, capsys, more, words):
    assert ask(tmp_path, LLAMA, configuration(1), *WORDS, *more) == 2
    assert words in capsys.readouterr().err


def test_days_with_offload_are_refused(tmp_path, capsys):
    config = configuration(2, offload_optimizer={"device": "cpu"})
    assert ask(tmp_path, LLAMA, config, *WORDS, "--gpu", "H200", "--tokens", "1T") == 2
    assert "seconds are not told with offload" in capsys.readouterr().err


@pytest.mark.ranks
def test_the_command_tells_days_and_price(tmp_path, capsys):
    more = ("--gpu", "H100", "--tokens", "1B", "--price", "2.5", "--json")
    assert ask(tmp_path, LLAMA, configuration(3, accumulation=3), *WORDS, *more) == 0
    time = json.loads(capsys.readouterr().out)["time"]
    assert time["tokens_per_step"] == 2 * 32 * 3 * 16
    assert 0 < time["fastest"] < time["slowest"] and set(time["messages"]) > {"all_gather_into_tensor"}
    for days, name in zip(time["days"], ("fastest", "slowest")):
        assert days == pytest.approx(1e9 / time["tokens_per_step"] * time[name] / 86400)
    assert time["price"] == pytest.approx([days * 24 * 16 * 2.5 for days in time["days"]])
    assert 0 < time["mfu"][0] < time["mfu"][1] < 1


def test_the_version_says_what_is_supported(capsys):
    with pytest.raises(SystemExit):
        main(["--version"])
    assert "needs torch 2.13 or newer" in capsys.readouterr().out


def test_what_was_tested_are_the_pins():
    from helpers.tools.rehearsal.versions import TESTED
    from tests import nbval_options

    assert {name: nbval_options.pinned()[name] for name in TESTED} == TESTED


def test_a_diary_says_how_long_it_still_takes(tmp_path):
    """Two micro-batches: the second step's passes are 3.5 of 14 units each."""
    now, file, said = [100.0], tmp_path / "diary", []
    diary = Diary(file, clock=lambda: now[0])
    diary.expected = 4
    for name, lasts in (("forward", 4), ("backward", 8), ("step", 2), ("forward", 4)):
        diary.begin(name)
        said.append(file.read_text())
        now[0] += lasts
    assert said == [
        "forward pass 1",
        "backward pass 1, about 52 s left",
        "optimizer step 1, about 44 s left",
        "forward pass 2, about 42 s left",
    ]
