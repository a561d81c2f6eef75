"""Faults of DeepSpeed 0.19.8 and what it refuses, as lesson 16 shows them, each in its smallest form.

A test passes while it is so.  One that fails is good news: the words of the lesson that the failure names are
to be corrected.
"""

import contextlib
import dataclasses
import io

import pytest
from helpers import corpus, launch, models
from helpers.tools.launcher.failures import RankError
from tests.support import configuration

pytestmark = pytest.mark.ranks

SIZE = models.GPTSize(layers=1, width=16, heads=2)
GONE = "DeepSpeed has mended this: correct lesson 16, {}"


class Routed(models.FeedForward):
    def __init__(self, ep):
        from deepspeed.moe.layer import MoE

        super().__init__(SIZE)
        self.up = self.down = None
        self.moe = MoE(
            SIZE.width, models.FeedForward(SIZE), num_experts=2, ep_size=ep, drop_tokens=False, use_rts=False
        )

    def forward(self, x):
        return self.moe(x)[0]


def engine_of(stage, ep):
    import deepspeed

    deepspeed.init_distributed()
    model = models.with_experts(models.build(models.GPT, SIZE), lambda layer: Routed(ep))
    with contextlib.redirect_stdout(io.StringIO()):
        return deepspeed.initialize(
            model=model, model_parameters=model.parameters(), config=configuration(stage, bf16=False)
        )[0]


def norm(ep):
    """By which stage 0 clips in fp32, and the mean of what each rank holds."""
    import deepspeed.comm as comm
    import torch
    from deepspeed.runtime.utils import clip_grad_norm_

    engine = engine_of(0, ep)
    engine.backward(engine(*corpus.batch(0, 2, 8, comm.get_rank(), 2)))
    own = torch.stack([parameter.grad.norm() for parameter in engine.module.parameters()]).norm()
    comm.all_reduce(own)
    return float(clip_grad_norm_(engine.module.parameters(), 1e9)), own.item() / 2


def test_stage_3_is_refused():
    with pytest.raises(RankError, match="not supported with ZeRO Stage 3"):
        launch(engine_of, ranks=2, arguments={"stage": 3, "ep": 2}, device="cpu")


def test_the_norm_of_stage_0_is_the_mean_of_the_ranks_norms():
    clipped_by, mean = launch(norm, ranks=2, arguments={"ep": 2}, device="cpu")[0]
    assert abs(clipped_by - mean) < 1e-5, GONE.format("Clipping at stage 0")


def automatic():
    import deepspeed
    from transformers import MixtralConfig, MixtralForCausalLM

    deepspeed.init_distributed()
    shape = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
    }
    model = MixtralForCausalLM(MixtralConfig(**shape, vocab_size=16, num_local_experts=2))
    config = configuration(0, bf16=False) | {
        "expert_parallel": {"enabled": True, "autoep_size": 2, "preset_model": "mixtral"}
    }
    deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)


def test_auto_ep_takes_the_registry_of_transformers_for_a_dict():
    with pytest.raises(RankError, match="_CanRecordRegistry.get"):
        launch(automatic, ranks=2, device="cpu")


def test_grouped_products_take_the_fused_activation_on_the_cpu_and_a_loop_over_experts_does_not(monkeypatch):
    """With Triton, which is there where a GPU is, the fused one raises on the CPU's tensors."""
    import torch
    from deepspeed.moe import ep_experts

    plain, taken = ep_experts.EXPERT_ACTIVATIONS["swiglu"], []

    def fused(gate, *rest):
        taken.append((grouped, gate.device.type))
        return plain.fn(gate, *rest)

    monkeypatch.setitem(ep_experts.EXPERT_ACTIVATIONS, "swiglu", dataclasses.replace(plain, fused_fn=fused))
    for grouped in (True, False):
        experts = ep_experts.GroupedExperts(16, 16, 2, use_grouped_mm=grouped)
        for weight in experts.parameters():
            torch.nn.init.normal_(weight)
        answers = experts(torch.ones(4, 16), torch.tensor([3, 1]))
        assert answers.shape == (4, 16)
    assert taken == [(True, "cpu")], GONE.format("use_grouped_mm of AutoEP")
