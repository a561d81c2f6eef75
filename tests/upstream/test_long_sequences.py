"""Faults of DeepSpeed 0.19.8 that lesson 13 shows, each in its smallest form.

A test passes while DeepSpeed has the fault.  One that fails is good news: the fault is mended, and the words
of the lesson that the failure names are to be corrected.
"""

import math

import pytest
import torch
from torch.nn import functional as F
from helpers import corpus, launch, models
from helpers.tools.launcher.failures import RankError
from tests.support import configuration

pytestmark = pytest.mark.ranks

SIZE = models.GPTSize(layers=1, context=64)
TILES, WRONG = 4, 1e-2  # of a norm, relative; rounding makes a millionth
GONE = "DeepSpeed has mended this: correct lesson 13, {}"


def plain(head, x, y):
    return F.cross_entropy(head(x).flatten(0, -2), y.flatten())


def fused(head, x, y, tiles=TILES):
    from deepspeed.runtime.sequence_parallel.ulysses_sp import TiledFusedLogitsLoss

    return TiledFusedLogitsLoss.apply(plain, head, x, y, None, tiles, [head.weight], "mean")


def general(head, x, y, tiles=TILES, weights="the head's"):
    from deepspeed.runtime.sequence_parallel.ulysses_sp import sequence_tiled_compute

    weights = [head.weight] if weights == "the head's" else weights
    return sequence_tiled_compute(
        plain, x.shape[1], tiles, {"x": x, "y": y}, {"head": head}, "x", weights, 0, "mean"
    )


class GPT(models.GPT):
    def __init__(self, loss_of, tied):
        super().__init__(SIZE)
        self.loss_of = loss_of
        if not tied:
            self.head.scores = models.Linear(SIZE.width, SIZE.vocabulary, bias=False)

    def forward(self, ids_bs, targets_bs):
        x_bsh = self.embedding(ids_bs)
        for block in self.blocks:
            x_bsh = block(x_bsh)
        return self.loss_of(self.head.scores, self.head.norm(x_bsh), targets_bs)


def train(stage, loss_of=plain, tied=False, accumulation=1, mpu=None, mesh_param=None, **keys):
    """A step in which every rank has rows of its own: the engine, and the norm of the gradients."""
    import deepspeed
    import deepspeed.comm as comm
    from deepspeed.utils import safe_get_full_grad

    more = {name: value for name, value in {"mpu": mpu, "mesh_param": mesh_param}.items() if value}
    keys |= {"stage3_param_persistence_threshold": 0} if stage == 3 else {}
    config = configuration(
        stage, bf16=False, accumulation=accumulation, extra={"gradient_clipping": 0.0}, **keys
    )
    if "mpu" in more:
        config["sequence_parallel_size"] = comm.get_world_size()
    model = models.build(GPT, loss_of, tied, config=config)
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config, **more)
    for micro in range(accumulation):
        engine.backward(engine(*corpus.batch(micro, 2, 64, comm.get_rank(), 2, engine.device)))
        whole = (
            [safe_get_full_grad(parameter) for parameter in model.parameters()] if stage == 0 else []
        )  # in fp32 it knows no norm
        engine.step()
    return engine, float(
        torch.cat([grad.flatten() for grad in whole]).norm() if whole else engine.get_global_grad_norm()
    )


def all_norms():
    """{case: norm of the gradients}, in one job, since each takes a tenth of a second; the groups come last,
    for DeepSpeed does not forget them."""
    import deepspeed
    import deepspeed.comm as comm
    import deepspeed.runtime.sequence_parallel.parallel_state_sp as groups

    deepspeed.init_distributed()
    cases = {
        "accumulated": {"stage": 1, "accumulation": 2},
        "accumulated, fused": {"stage": 1, "accumulation": 2, "loss_of": fused},
        "accumulated, general": {"stage": 1, "accumulation": 2, "loss_of": general},
        "stage 1": {"stage": 1},
        "tied": {"stage": 3, "tied": True},
        "tied, fused": {"stage": 3, "tied": True, "loss_of": fused},
        "tied, general": {"stage": 3, "tied": True, "loss_of": general},
    }
    norms = {name: train(**case)[1] for name, case in cases.items()}
    try:
        train(2, fused, tied=True)
    except AssertionError:
        norms["tied at stage 2"] = "AssertionError"
    groups.initialize_sequence_parallel(comm.get_world_size())
    norms |= {f"stage {stage}, with groups": train(stage, mpu=groups)[1] for stage in (0, 1, 2, 3)}
    return norms | {
        "stage 3 in one piece, with groups": train(
            3, mpu=groups, reduce_scatter=False, reduce_bucket_size=1_000_000
        )[1]
    }


@pytest.fixture(scope="module")
def norms():
    return launch(all_norms, ranks=2, device="cpu")[0]


@pytest.mark.parametrize("stage, factor", [("0", 2), ("1", 2), ("2", 2), ("3", 1), ("3 in one piece", 2)])
def test_gradients_of_sequence_ranks_are_summed_at_stages_0_to_2_and_averaged_at_stage_3_by_default(
    norms, stage, factor
):
    assert norms[f"stage {stage}, with groups"] / norms["stage 1"] == pytest.approx(factor, rel=1e-3), (
        GONE.format("'The factor between the stages' and the table of faults")
    )


def test_a_fused_tiled_loss_ignores_accumulation_and_the_general_one_does_not(norms):
    assert norms["accumulated, general"] == pytest.approx(norms["accumulated"], rel=1e-3)
    assert norms["accumulated, fused"] != pytest.approx(norms["accumulated"], rel=WRONG), GONE.format(
        "'A tiled loss whose gradient has another factor' and the table of faults"
    )


@pytest.mark.parametrize("how", ["fused", "general"])
def test_a_tied_head_gets_a_wrong_gradient_from_a_tiled_loss_at_stage_3(norms, how):
    assert norms[f"tied, {how}"] != pytest.approx(norms["tied"], rel=WRONG), GONE.format(
        "'A tiled loss whose gradient has another factor' and the table of faults"
    )


def test_at_stage_2_the_same_is_an_error(norms):
    assert norms.get("tied at stage 2") == "AssertionError", GONE.format(
        "the sentence on stage 2 in the same place"
    )


def weights_apart():
    """How far the first weights of the two ranks are from each other after a step with `mesh_param`."""
    import deepspeed
    import deepspeed.comm as comm

    deepspeed.init_distributed()
    engine, _ = train(1, mesh_param=(1, comm.get_world_size()))
    mine = next(engine.module.parameters()).detach().clone()
    mean = mine.clone()
    comm.all_reduce(mean)
    return (mine - mean / 2).abs().max().item()


def test_with_a_mesh_gradients_of_sequence_ranks_never_meet():
    assert launch(weights_apart, ranks=2, device="cpu")[0] > 1e-5, GONE.format(
        "'Gradients that never meet' and the table of faults"
    )


def test_tiles_that_do_not_divide_the_tokens_give_another_gradient_or_nan():
    torch.manual_seed(0)
    head, x, y = torch.nn.Linear(4, 8, bias=False), torch.randn(1, 9, 4), torch.zeros(1, 9, dtype=torch.long)
    found = {}
    for loss_of in (plain, general, fused):
        own = x.clone().requires_grad_()
        loss = loss_of(head, own, y, tiles=8) if loss_of is not plain else plain(head, own, y)
        loss.backward()
        found[loss_of] = loss.item(), own.grad.norm().item()
    text = GONE.format("'The same in DeepSpeed' and the table of faults: unequal tiles")
    assert math.isnan(found[general][0]), text
    assert found[fused][1] < 0.9 * found[plain][1], text


def test_the_documented_default_of_compute_params_raises():
    head = torch.nn.Linear(4, 8)
    try:
        general(
            head, torch.randn(1, 8, 4, requires_grad=True), torch.zeros(1, 8, dtype=torch.long), weights=None
        )
    except TypeError as error:
        assert "'NoneType' object is not iterable" in str(error)
    else:
        pytest.fail(GONE.format("'The same in DeepSpeed': the weights may be left out without ZeRO"))


def test_a_factor_after_the_forward_pass_does_not_reach_the_head_of_a_fused_tiled_loss():
    norms = {}
    for loss_of in (general, fused):
        for factor in (1, 0.5):
            torch.manual_seed(0)
            head, x, y = (
                torch.nn.Linear(4, 8, bias=False),
                torch.randn(1, 8, 4, requires_grad=True),
                torch.zeros(1, 8, dtype=torch.long),
            )
            (factor * loss_of(head, x, y)).backward()
            norms[loss_of, factor] = torch.stack([head.weight.grad.norm(), x.grad.norm()])
    assert (norms[general, 0.5] / norms[general, 1]).tolist() == pytest.approx([0.5, 0.5])
    text = GONE.format(
        "the halved loss in 'A tiled loss whose gradient has another factor' and the table of faults"
    )
    assert (norms[fused, 0.5] / norms[fused, 1]).tolist() == pytest.approx([1, 0.5]), text


def uneven(told):
    """The greatest error of attention with three heads that two ranks share."""
    import deepspeed
    import deepspeed.comm as comm
    import deepspeed.runtime.sequence_parallel.parallel_state_sp as groups
    from deepspeed.sequence.layer import DistributedAttention
    from deepspeed.utils import groups as known

    def attend(q, k, v):
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)

    deepspeed.init_distributed()
    ranks, rank = comm.get_world_size(), comm.get_rank()
    if told:
        groups.initialize_sequence_parallel(ranks)
        known.mpu = groups  # as `deepspeed.initialize` does with `mpu`
    torch.manual_seed(0)
    qkv = torch.randn(3, 1, 16, 3, 8)
    shared = DistributedAttention(attend, comm.get_world_group(), scatter_idx=2, gather_idx=1)
    mine = shared(*(part.chunk(ranks, 1)[rank].contiguous() for part in qkv), 0)
    return (mine - attend(*qkv).chunk(ranks, 1)[rank]).abs().max().item()


def test_uneven_heads_are_exact_when_deepspeed_knows_the_groups_and_an_obscure_error_else():
    assert max(launch(uneven, ranks=2, arguments={"told": True}, device="cpu")) < 1e-6
    try:
        launch(uneven, ranks=2, arguments={"told": False}, device="cpu")
    except RankError as error:
        assert "head" not in str(error).splitlines()[0], GONE.format("'Heads that do not divide'")
    else:
        pytest.fail(GONE.format("'Heads that do not divide'"))


def cpu_checkpointing_alone():
    import deepspeed

    deepspeed.init_distributed()
    deepspeed.checkpointing.configure(None, checkpoint_in_cpu=True)
    layer, x = torch.nn.Linear(4, 4), torch.randn(2, 4, requires_grad=True)
    try:
        deepspeed.checkpointing.checkpoint(layer, 2 * x).sum().backward()
    except RuntimeError as error:
        return str(error)
    return None


def test_kept_inputs_that_go_to_the_host_are_empty_where_the_device_is_the_host():
    assert launch(cpu_checkpointing_alone, ranks=1, device="cpu")[0], GONE.format(
        "'The keys of `activation_checkpointing`'"
    )
