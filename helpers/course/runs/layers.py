"""Lesson 01's real layers and models: what they keep tensor by tensor, whole models that are counted without
memory, tests of a formula against these, recorded steps, and a small model for DeepSpeed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from itertools import combinations

import torch
from torch.utils.flop_counter import FlopCounterMode
from helpers.course import recorded
from helpers.course.exercises.miscounts import miscounts as miscounts
from helpers.course.exercises.real_layers import Reads, config, real, rotations, stream
from helpers.course.job.judged import last_step
from helpers.course.models.published import PUBLISHED
from helpers.course.models.published import TRAINED as TRAINED
from helpers.tools.measure.saved import SavedActivations
from helpers.tools.rehearsal.of_transformers import checkpointed
from helpers.tools.theory.hardware import PEAKS
from helpers.tools.theory.layers import gpt_flops
from helpers.tools.theory.llama import LlamaSize

WITHOUT_COMPILER = "aot_eager_decomp_partition"  # torch.compile's choice of what to keep, no code generated
OF_STEP = "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"
NORM = "x in fp32", "1 / rms", "x / rms"
KEPT = (  # what a block keeps, by the names of `opened_block`, in the order in which autograd takes it
    *(*NORM, "y", "keys, turned", "queries, turned", "values", "logsumexp", "z"),
    *(*NORM, "y", "g", "silu(g)", "u", "silu(g) · u"),
)


# --- what a layer keeps


def kept(layer: torch.nn.Module, b: int = 2, s: int = 64, compiled: bool = False) -> list[float]:
    """What a layer keeps in bf16, tensor by tensor, each in sizes of its input, which counts.

    The numbers do not depend on the machine: a GPU runs the same operations, where it has no other kernel.

    Args:
        layer: a norm, a block of the course's GPT, or a block of transformers' Llama.
        compiled: whether `torch.compile` chooses what to keep and what to compute again.
    """
    of = getattr(getattr(layer, "self_attn", None), "config", None)
    norm = next(part for part in layer.modules() if getattr(part, "weight", None) is not None)
    x_bsh = stream(b, s, of.hidden_size if of else norm.weight.shape[-1])
    layer = layer.bfloat16()
    shared = rotations(of, x_bsh) if of else {}
    reads = Reads(torch.compile(layer, backend=WITHOUT_COMPILER) if compiled else layer)
    with SavedActivations(reads) as saved:
        reads(x_bsh, **shared)
    return [size / (2 * x_bsh.numel()) for size in saved.sizes]


def narrow_block(h: int, a: int, k: int, d: int, f: int, **others: int) -> torch.nn.Module:
    """A block of transformers' Llama with a card's proportions and width of heads, an eighth as wide."""
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer

    return LlamaDecoderLayer(config(h // 8, a // 8, k // 8, d, f // 8), 0)


def kept_sizes(name: str) -> float:
    """What a block of a published model keeps in all, in sizes of its input, which counts."""
    from transformers import AutoConfig, AutoModelForCausalLM

    alone = {"num_hidden_layers": 1, "vocab_size": 256}
    of = AutoConfig.for_model(**PUBLISHED[name] | alone, attn_implementation="sdpa")
    return sum(kept(AutoModelForCausalLM.from_config(of).model.layers[0]))


def norms(h: int = 4096) -> dict[str, torch.nn.Module]:
    """Torch's LayerNorm, the RMSNorm of transformers' Llama, and that one under `torch.compile`, in bf16."""
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    of = {"LayerNorm": torch.nn.LayerNorm(h).bfloat16(), "Llama's RMSNorm": LlamaRMSNorm(h).bfloat16()}
    return of | {"the same, compiled": torch.compile(LlamaRMSNorm(h).bfloat16(), backend=WITHOUT_COMPILER)}


def stays(layer: torch.nn.Module) -> dict[str, float]:
    """What a block of transformers' Llama keeps, by the names of `opened_block`: {tensor: its size, in sizes
    of the block's input}, a norm's for both norms."""
    return dict(zip(KEPT, kept(layer), strict=True))


# --- whole models


def counted(of: str | Mapping[str, int], s: int = 8192) -> dict[str, int]:
    """{"parameters", "FLOPs" of a forward pass of one sequence with its loss} of a published model, or of a
    Llama with these letters, built by transformers on the device meta, where tensors have shapes and no
    memory."""
    from transformers import AutoConfig, AutoModelForCausalLM

    if isinstance(of, str):
        known = dict(PUBLISHED[of])
        of = AutoConfig.for_model(known.pop("model_type"), **known, use_cache=False)
    else:
        of = config(**of)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(of, dtype=torch.bfloat16, attn_implementation="sdpa")
        ids_bs, mask = torch.zeros(1, s, dtype=torch.long), torch.zeros(1, 1, s, s, dtype=torch.bfloat16)
        with FlopCounterMode(display=False) as counter:
            model(input_ids=ids_bs, labels=ids_bs, attention_mask=mask)
    return {"parameters": model.num_parameters(), "FLOPs": counter.get_total_flops()}


def loss(parameters: float, tokens: float) -> str:
    """What a model's loss will be by arXiv 2404.10102, which fitted the data of arXiv 2203.15556 again; as
    text, since more digits would say nothing.  That paper's own fit is left out: its optimum is at 61 tokens
    per parameter for the course's job, while its two other methods say about 20, as the new fit does."""
    return f"{1.8172 + 482.01 / parameters**0.3478 + 2085.43 / tokens**0.3658:.2f}"


def recorded_block() -> dict:
    """Of one block of Llama 3 8B in bf16 on an H100, 8,192 tokens: "kept", bytes that its forward pass left,
    its result among them, and "median", seconds of a forward and backward pass."""
    return next(run.reports[0] for run in recorded.runs("block") if run.ranks == 1)


def step_bars(flops: float, of_matrices: float) -> tuple[dict[str, dict[str, float]], str]:
    """For `time_bars`: a step with 16 of our blocks, recorded kernel by kernel on an H100, with and without
    checkpointing, beside its FLOPs at the peak; and a sentence about it.

    Args:
        flops: of its forward and backward pass; `of_matrices`: those of its matrix products alone.
    """
    plain, again = recorded.runs("waterfall", blocks="16 blocks")
    peak, parts = PEAKS["NVIDIA H100 80GB HBM3"], recorded.waterfall(plain)
    passes, update = sum(parts.values()), sum(recorded.waterfall(plain, "update").values())
    parts["the rest"] += parts.pop("between kernels")
    parts["the update"] = update
    bars = {"its FLOPs\nat the peak": {"at the peak": flops / peak}, "recorded": parts}
    bars["checkpointed"] = parts | {"computed again": sum(recorded.waterfall(again).values()) - passes}
    of_peak, scores = of_matrices / peak / parts["matrices"], (flops - of_matrices) / peak
    shares = ", ".join(f"{name} {100 * part / (passes + update):.0f} %" for name, part in parts.items())
    speed = f"matrices run at {100 * of_peak:.0f} % of the peak; attention takes "
    speed += f"{1e3 * parts['attention']:.0f} ms, all of its scores at the peak would take {1e3 * scores:.0f}"
    return bars, f"{shares}\n{speed}"


def kept_by(
    kernels: Mapping[str, torch.nn.Module], kept_bytes: Callable, d: int
) -> dict[str, tuple[tuple[int, ...], list[float]]]:
    """{kernel, measured: (tokens, MB that it keeps, by `kept_bytes`)}: four query heads of d channels share a
    key head."""
    lengths, points = (128, 512, 1024, 1536, 2048), {}
    for name, kernel in kernels.items():
        sizes = []
        for n in lengths:
            qkv = [torch.randn(1, heads, n, d).bfloat16().requires_grad_() for heads in (4, 1, 1)]
            sizes.append(kept_bytes(kernel, *qkv) / 1e6)
        points[f"{name}, measured"] = lengths, sizes
    return points


def letters(name: str) -> dict[str, int | bool]:
    """h, a, k, d, f, L, V of a published model, and whether its head is tied."""
    size = LlamaSize.of(PUBLISHED[name])
    return size.letters | {"tied": size.tied}


def tests_of(looks: Mapping[str, tuple[str | Mapping[str, int], str]], s: int = 8192) -> dict[str, Callable]:
    """Tests for `caught`: each divides what a formula, a function of letters, says of a model by what was
    counted; {test: (name of a published model or letters, "parameters", "FLOPs" or "kept")}.

    What a model keeps is counted in a run, of a published model in that of a narrow one: with 64 tokens in
    two sequences, since with one the labels are a view of a tensor that has one label more.
    """

    def look(formula: Callable, rows: int, tokens: int, of: Mapping[str, int], what: str, due: int) -> float:
        return formula(rows, tokens, **of)[what] / due

    tests = {}
    for test, (of, what) in looks.items():
        known, rows, tokens = letters(of) if isinstance(of, str) else plain_letters(of), 1, s
        if what == "kept":
            known, rows, tokens = narrow(known) if isinstance(of, str) else known, 2, 64
            due = real("llama", rows, tokens, **known)
        else:
            due = counted(of if isinstance(of, str) else known, s)
        tests[test] = partial(look, rows=rows, tokens=tokens, of=known, what=what, due=due[what])
    return tests


def plain_letters(of: Mapping[str, object]) -> dict[str, int | bool]:
    """As transformers wants them, where a learner has made them with numpy."""
    return {letter: bool(value) if letter == "tied" else int(value) for letter, value in of.items()}


def narrow(of: Mapping[str, int]) -> dict[str, int]:
    """Letters of a model with two blocks, an eighth as wide, and few words."""
    return {**of, "L": 2, "V": 256} | {letter: of[letter] // 8 for letter in "hakf"}


def fewest(caught: Mapping[str, Iterable[str]]) -> int:
    """How many tests together catch all faults, of {fault: tests that catch it}, as a picture has them."""
    tests = sorted(set().union(*caught.values()))
    some = (some for count in range(len(tests) + 1) for some in combinations(tests, count))
    enough = (few for few in some if all(set(few) & set(found) for found in caught.values()))
    if (few := next(enough, None)) is None:
        raise ValueError("some fault passes every test: run the function's check again, and then this cell")
    return len(few)


def timed() -> dict[str, tuple[float, dict[str, float]]]:
    """Recorded on H100s, {what: (seconds, arguments of `days` but the MFU)}: one block of Llama 3 8B, half of
    the model on one GPU with its loss and its update, the same checkpointed, and the whole model's steps."""
    size = LlamaSize.of(PUBLISHED["Llama 3 8B"])
    s, peak = size.context, PEAKS["NVIDIA H100 80GB HBM3"]

    def step(blocks: int, sequences: int = 1, gpus: int = 1, head: int = size.vocabulary) -> dict:
        rest = 2 * size.width * (size.vocabulary - head)  # FLOPs of the head's other rows
        forward = gpt_flops(replace(size, layers=blocks), 1, s) / s - rest
        return {"tokens": gpus * sequences * s, "forward": forward, "gpus": gpus, "peak": peak}

    plain, again = recorded.runs("waterfall", blocks="16 blocks")
    update = sum(recorded.waterfall(plain, "update").values())
    found = {"one block": (recorded_block()["median"], step(1, head=0))}
    for name, run in {"16 blocks, loss\nand update": plain, "the same\ncheckpointed": again}.items():
        found[name] = sum(recorded.waterfall(run).values()) + update, step(16)
    whole = [run for run in recorded.runs("job", hardware="4 x NVIDIA H100 80GB HBM3") if run.reports]
    for run in sorted(whole, key=lambda run: -run.configuration[OF_STEP[0]]):
        q, times = (run.configuration[key] for key in OF_STEP)
        name = f"32 blocks\n{run.ranks} GPUs, ZeRO-3\n{times} × {q} sequence{'s' * (q > 1)}"
        found[name] = max(last_step(run)), step(size.layers, q * times, run.ranks)
    return found


# --- a rank


def small_llama(shape: dict, checkpointing: bool) -> torch.nn.Module:
    """A Llama of these letters; with checkpointing each block keeps its input alone."""
    from transformers import LlamaForCausalLM

    torch.manual_seed(0)
    model = LlamaForCausalLM(config(**shape))
    return checkpointed(model) if checkpointing else model


def profiled(engine: torch.nn.Module, ids_bs: torch.Tensor) -> int:
    """FLOPs of a forward pass by DeepSpeed's profiler."""
    from deepspeed.profiling.flops_profiler import FlopsProfiler

    profiler = FlopsProfiler(engine.module)
    profiler.start_profile()
    engine.module(input_ids=ids_bs, labels=ids_bs)
    flops = profiler.get_total_flops()
    profiler.end_profile()
    return flops
