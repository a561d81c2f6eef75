"""Wrong answers that earlier checks of lessons 10 to 18 and of the appendix let pass: each is a verdict now.

More of them are among the exercises' own mistakes, where test_in_ranks.py tries them."""

import pytest
import torch
from helpers.course.exercises import clusters, experts, fsdp, long_sequences, offload_and_lora
from helpers.course.exercises.editing import edit
from tests.exercises.course import solutions

pytestmark = pytest.mark.ranks


class GradientsAtOnce(torch.autograd.Function):
    """Computes its gradients in the forward pass, and forgets the factor that comes from outside."""

    @staticmethod
    def forward(context, x, weight, targets, tiles):
        with torch.enable_grad():
            x, weight = x.detach().requires_grad_(), weight.detach().requires_grad_()
            total = 0.0
            for part, chosen in zip(x.chunk(tiles, 1), targets.chunk(tiles, 1)):
                logits = (part @ weight.T).float().flatten(0, 1)
                loss = torch.nn.functional.cross_entropy(logits, chosen.flatten(), reduction="sum")
                (loss / (targets != -100).sum()).backward()
                total = total + loss.detach()
        context.save_for_backward(x.grad, weight.grad)
        return total / (targets != -100).sum()

    @staticmethod
    def backward(context, gradient):
        return *context.saved_tensors, None, None


def loss_with_gradients_at_once(head, x_bsh, targets_bs, tiles):
    return GradientsAtOnce.apply(x_bsh, head.weight, targets_bs, tiles)


def wrap_and_reduce_in_bf16(model, mesh):
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh, mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.bfloat16))


def saved_by_rank_0_alone(engine, folder, tag):
    if engine.global_rank == 0:
        solutions()["18-save_safely"](engine, folder, tag)


WRONG = {
    "tiled_loss": (long_sequences, loss_with_gradients_at_once, "`the gradient of x`"),
    "wrap, reduced in bf16": (fsdp, wrap_and_reduce_in_bf16, "`this rank's part of the gradient of "),
    "save_safely, text alone": (
        clusters,
        edit(solutions()["18-save_safely"], 'Path(folder, "latest.new")', 'Path(folder + "/latest.new")'),
        "TypeError: unsupported operand type(s) for +: 'PosixPath' and 'str'",
    ),
    "save_safely, rank 0 alone": (clusters, saved_by_rank_0_alone, "rank 0 of 2 hung in barrier"),
    "Exchange, one dtype": (
        experts,
        edit(
            solutions()["16-Exchange"],
            "torch.empty_like(rows, memory_format=torch.contiguous_format)",
            "torch.empty(rows.shape)",
        ),
        "different dtypes",
    ),
    "LoRA, the adapter's input cut off": (
        offload_and_lora,
        edit(solutions()["12-LoRA"], "self.down(x_bsh)", "self.down(x_bsh.detach())"),
        "`the gradient of the input`",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_answer_is_a_verdict(name):
    module, answer, words = WRONG[name]
    exercise = name.partition(",")[0]
    verdict = getattr(module, exercise).verdict(answer)
    assert verdict.startswith("not yet: ") and words in verdict, verdict
