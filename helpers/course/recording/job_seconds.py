"""Steps of the job by the clock: plans of `job.PLANS` by DeepSpeed, and one of them by torch's FSDP2."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from helpers.course import job
from helpers.course.job.plans import PLANS, TIMED, Plan
from helpers.course.recording.fsdp_models import wrapped
from helpers.course.recording.overlap import timed
from helpers.tools.rehearsal.of_transformers import checkpointed

WARM_UP, STEPS = 2, 6
FSDP2 = {"FSDP2, bf16 sums": torch.bfloat16, "FSDP2, fp32 sums": torch.float32}  # how gradients are added
BESIDE = "2 GPUs, stage 3"


def runs() -> list[tuple[int, dict]]:
    """Each plan on its GPUs."""
    plans = [(PLANS[name].gpus, {"plan": name, "through": "DeepSpeed"}) for name in TIMED]
    return plans + [(PLANS[BESIDE].gpus, {"plan": BESIDE, "through": through}) for through in FSDP2]


def predicted(ranks: int, plan: str, through: str) -> dict[str, list[float]]:
    """{"seconds": [of a step at the fastest, at the slowest]}: rehearsed; FSDP2 sends what stage 3 sends."""
    told = job.stored(plan)["seconds"]
    return {"seconds": [round(sum(told[end].values()), 4) for end in ("fastest", "slowest")]}


def job_seconds(plan: Plan, config: dict, through: str) -> dict[str, object]:
    """A plan's steps, without a stop between them.

    Args:
        through: "DeepSpeed", or one of `FSDP2`, with gradients clipped as DeepSpeed's default clips them.

    Returns:
        {"seconds": [[forward, backward, what follows] of each micro-batch, one list for each step], "peak":
        {"allocated", "reserved": bytes at most in these steps}, "retries": of the allocator in them}.
    """
    import deepspeed

    deepspeed.init_distributed()
    micro_batches = config["gradient_accumulation_steps"]
    phases = (by_deepspeed if through == "DeepSpeed" else by_fsdp2)(plan, config, through)
    for _ in range(WARM_UP):
        list(phases(micro_batches))
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_stats()["num_alloc_retries"]
    seconds = [timed(phases(micro_batches)) for _ in range(STEPS)]
    found = torch.cuda.memory_stats()
    return {
        "seconds": [[step[at : at + 3] for at in range(0, len(step), 3)] for step in seconds],
        "peak": {of: found[f"{of}_bytes.all.peak"] for of in ("allocated", "reserved")},
        "retries": found["num_alloc_retries"] - before,
    }


def batch_of(config: dict) -> torch.Tensor:
    rows = (config["train_micro_batch_size_per_gpu"], job.SEQUENCE)
    return torch.randint(3, 1000, rows, device="cuda")


def by_deepspeed(plan: Plan, config: dict, through: str) -> Callable[[int], Iterator[None]]:
    """What yields after each phase of a step of so many micro-batches."""
    import deepspeed
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.integrations import HfDeepSpeedConfig

    divided = config["zero_optimization"]["stage"] == 3
    known = HfDeepSpeedConfig(config) if divided else None  # while this object lives
    shape = AutoConfig.for_model(**job.MODELS[plan.model])
    with torch.device("cpu" if divided else "cuda"):
        model = AutoModelForCausalLM.from_config(shape, dtype=torch.bfloat16)
    del known
    if plan.checkpointing:
        model = checkpointed(model, plan.checkpointing)
    engine, *_ = deepspeed.initialize(model=model.train(), model_parameters=model.parameters(), config=config)
    ids = batch_of(config)

    def phases(micro_batches):
        for _ in range(micro_batches):
            loss = engine(input_ids=ids, labels=ids, use_cache=False).loss
            yield
            engine.backward(loss)
            del loss
            yield
            engine.step()
            yield

    return phases


def by_fsdp2(plan: Plan, config: dict, through: str) -> Callable[[int], Iterator[None]]:
    """The same under `fully_shard`, which sends in every micro-batch, with masters in fp32."""
    from transformers import AutoConfig, AutoModelForCausalLM

    shape = AutoConfig.for_model(**job.MODELS[plan.model])
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(shape, dtype=torch.float32).train()
    if plan.checkpointing:
        model = checkpointed(model, plan.checkpointing)
    model, optimizer = wrapped(model, reshard=True, sums=FSDP2[through], fused=True)
    ids = batch_of(config)

    def phases(micro_batches):
        for number in range(micro_batches):
            loss = model(input_ids=ids, labels=ids, use_cache=False).loss
            yield
            (loss / micro_batches).backward()
            del loss
            yield
            if number == micro_batches - 1:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            yield

    return phases
