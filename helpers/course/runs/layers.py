"""Lesson 01's real layers and models: what they keep tensor by tensor, whole models that are counted without
memory, tests of a formula against these, and a small model's first forward pass under DeepSpeed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import combinations
from typing import TYPE_CHECKING

import torch
from torch.utils.flop_counter import FlopCounterMode
from helpers.course.exercises.miscounts import miscounts as miscounts
from helpers.course.exercises.real_layers import Reads, config, rotations, stream
from helpers.course.job.judged import last_step
from helpers.course.models.published import PUBLISHED
from helpers.course.models.published import TRAINED as TRAINED
from helpers.course.recording import recorded
from helpers.tools.measure.ledger import Ledger
from helpers.tools.measure.saved import SavedActivations
from helpers.tools.rehearsal.of_transformers import checkpointed
from helpers.tools.theory.hardware import PEAKS
from helpers.tools.theory.layers import gpt_flops
from helpers.tools.theory.llama import LlamaSize

if TYPE_CHECKING:
    from helpers.course.plots.schematics_model import KeptTensor

WITHOUT_COMPILER = "aot_eager_decomp_partition"  # torch.compile's choice of what to keep, no code generated
GPT_2_XL = {"size": "1.5B, padded", "ranks": 2, "stage": 1, "micro_batches": 1}  # one training of `speed`
GPT_2_XL |= {"checkpointing": False, "change": ""}
SMALL = 0.2  # inputs: a tensor that is smaller has no box
NORM = "norm", ("input, fp32", "bf16")
BLOCK = {  # {row: (layer, its tensors)} that a block keeps, in the order of its forward pass
    "first norm": NORM,
    "attention": ("attention", ("input", "k", "q", "v", "out")),
    "second norm": NORM,
    "feed-forward": ("feed-forward", ("input", "gate", "SiLU", "up", "product")),
}


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


def norms(h: int = 4096) -> dict[str, torch.nn.Module]:
    """Torch's LayerNorm, the RMSNorm of transformers' Llama, and that one under `torch.compile`, in bf16."""
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    of = {"LayerNorm": torch.nn.LayerNorm(h).bfloat16(), "Llama's RMSNorm": LlamaRMSNorm(h).bfloat16()}
    return of | {"the same, compiled": torch.compile(LlamaRMSNorm(h).bfloat16(), backend=WITHOUT_COMPILER)}


def norm_boxes(norms: Mapping[str, torch.nn.Module]) -> dict[str, list[KeptTensor]]:
    """What norms keep, for `plots.kept_tensors`."""
    names, found = {1: ("input",), 2: ("input, fp32", "normalized")}, {}
    for norm, layer in norms.items():
        large = [size for size in kept(layer) if size > SMALL]
        found[norm] = [box("norm", name, size) for name, size in zip(names[len(large)], large)]
    return found


def kept_boxes(layer: torch.nn.Module) -> dict[str, list[KeptTensor]]:
    """What a block of transformers' Llama keeps, for `plots.kept_tensors`: a row for each layer."""
    sizes = iter(size for size in kept(layer) if size > SMALL)
    return {row: [box(part, name, next(sizes)) for name in names] for row, (part, names) in BLOCK.items()}


def boxes(rows: Mapping[str, Mapping[str, float]], unit: float) -> dict[str, list[KeptTensor]]:
    """{row: {layer, or "layer: tensor": bytes}} for `plots.kept_tensors`, in a unit of so many bytes."""
    return {
        row: [box(part.split(": ")[0], part.split(": ")[-1], size / unit) for part, size in of.items()]
        for row, of in rows.items()
    }


def box(part: str, tensor: str, size: float) -> KeptTensor:
    """A box of `plots.kept_tensors`."""
    return {"layer": part, "tensor": tensor, "size": size}


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


def recorded_kept() -> tuple[dict[str, int], int]:
    """(letters of what was trained, with b and s; bytes that its first forward pass left on an H200): Llama
    3.2 1B without checkpointing, under ZeRO-3, which holds a few gathered weights beside."""
    (run,) = recorded.runs("rehearsed_models", training="Llama, stage 3")
    built, forward = run.reports[0][:2]
    kept_by_it = forward["end"]["requested"] - built["end"]["requested"]
    return {"b": 2, "s": 2048} | letters("Llama 3.2 1B"), kept_by_it


def letters(name: str) -> dict[str, int | bool]:
    """h, a, k, d, f, L, V of a published model, and whether its head is tied."""
    size = LlamaSize.of(PUBLISHED[name])
    return size.letters | {"tied": size.tied}


def tests_of(looks: Mapping[str, tuple[str | Mapping[str, int], str]], s: int = 8192) -> dict[str, Callable]:
    """Tests for `caught`: each divides what a formula, a function of letters, says of a model by what was
    counted; {test: (name of a published model or letters, "parameters" or "FLOPs")}."""

    def look(formula: Callable, of: Mapping[str, int], what: str, due: int) -> float:
        return formula(1, s, **of)[what] / due

    tests = {}
    for test, (of, what) in looks.items():
        known, due = letters(of) if isinstance(of, str) else of, counted(of, s)[what]
        tests[test] = partial(look, of=known, what=what, due=due)
    return tests


def fewest(caught: Mapping[str, Iterable[str]]) -> int:
    """How many tests together catch all faults, of {fault: tests that catch it}, as a picture has them."""
    tests = sorted(set().union(*caught.values()))
    some = (some for count in range(len(tests) + 1) for some in combinations(tests, count))
    return len(next(few for few in some if all(set(few) & set(found) for found in caught.values())))


def timed() -> dict[str, tuple[float, dict[str, float], float]]:
    """Recorded steps, {model and sequences of a GPU at once: (seconds, arguments of `days` but the MFU, FLOPs
    of a forward pass per token that go into masked scores)}: GPT-2 XL on two H200s; Llama 3 8B, of which
    every block is computed again in the backward pass, on four H100s."""
    steps = []
    for q in (1, 16, 32):
        run, *others = recorded.runs("speed", sequences=q, **GPT_2_XL)
        steps.append((f"GPT-2 XL\n{q} at once", run, q, run.size, recorded.step_time([run, *others]).median))
    for run in (run for run in recorded.runs("job", hardware="4 x NVIDIA H100 80GB HBM3") if run.reports):
        q, size = run.configuration["train_micro_batch_size_per_gpu"], LlamaSize.of(PUBLISHED["Llama 3 8B"])
        of_gpu = q * run.configuration["gradient_accumulation_steps"]
        steps.append((f"Llama 3 8B\n{q} at once", run, of_gpu, size, max(last_step(run))))
    found = {}
    for name, run, sequences, size, seconds in steps:
        s, known = size.context, {"gpus": run.ranks, "peak": PEAKS[run.device_name]}
        step = {"tokens": run.ranks * sequences * s, "forward": gpt_flops(size, 1, s) / s} | known
        found[name] = seconds, step, 2 * size.layers * s * size.width
    return found


# --- a rank


def first_forward(keys: dict, shape: dict, b: int, s: int, checkpointing: bool = False) -> dict:
    """A small Llama's first forward pass under DeepSpeed, in a rank, with random token ids.

    Args:
        keys: DeepSpeed's configuration.
        shape: letters of the model.
        checkpointing: whether each block keeps its input alone.

    Returns:
        {"held": {category: bytes} after it, "DeepSpeed": its FLOPs by DeepSpeed's profiler}.
    """
    import deepspeed
    from deepspeed.profiling.flops_profiler import FlopsProfiler
    from transformers import LlamaForCausalLM

    torch.manual_seed(0)
    with Ledger() as ledger:
        model = LlamaForCausalLM(config(**shape))
        model = checkpointed(model) if checkpointing else model
        adam = torch.optim.AdamW(model.parameters())
        engine, *_ = deepspeed.initialize(model=model, optimizer=adam, config=keys)
        ledger.watch(engine)
        ids_bs = torch.randint(0, shape["V"], (b, s), device=engine.device)
        inputs = {"input_ids": ids_bs, "labels": ids_bs}
        loss = engine(**inputs).loss  # alive, so that what it needs is
        held = ledger.snapshot("after forward").categories
        del loss
    profiler = FlopsProfiler(engine.module)
    profiler.start_profile()
    engine.module(**inputs)
    flops = profiler.get_total_flops()
    profiler.end_profile()
    return {"held": held, "DeepSpeed": flops}
