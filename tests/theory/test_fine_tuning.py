"""Frozen weights, adapters and offload: formulas against the papers' sums, and to the byte against what ranks
hold."""

import pytest
import torch
from torch import nn
from helpers import Ledger, corpus, launch, models, theory
from helpers.tools.measure.saved import SavedActivations
from tests.support import configuration

SIZE, LENGTH, RANK = models.GPTSize(layers=2), 16, 4
PLAIN = dict.fromkeys(
    (
        "stage3_max_live_parameters",
        "stage3_max_reuse_distance",
        "stage3_prefetch_bucket_size",
        "stage3_param_persistence_threshold",
    ),
    0,
)


class Adapted(nn.Module):
    def __init__(self, frozen):
        super().__init__()
        self.frozen, self.down = frozen, nn.Linear(frozen.in_features, RANK, bias=False)
        self.up = nn.Linear(RANK, frozen.out_features, bias=False)

    def forward(self, x):
        return self.frozen(x) + self.up(self.down(x))


def adapted_gpt():
    model = models.build(models.GPT, SIZE).requires_grad_(False)
    for block in model.blocks:
        block.attention.qkv = Adapted(block.attention.qkv)
    return model


def sizes(model):
    """Elements of the frozen parameters, and of the trained ones."""
    return [
        [one.numel() for one in model.parameters() if one.requires_grad == trained]
        for trained in (False, True)
    ]


def test_lora_beside_chatglm_has_as_many_parameters_as_peft_gives_it():
    """Four layers of attention in 28 blocks: 5.6 million of 6.2 billion."""
    widths = ((4096, 4096), (4096, 256), (4096, 256), (4096, 4096))
    assert 28 * sum(theory.lora_parameters(*shape, 8) for shape in widths) == 5_619_712
    with pytest.raises(ValueError, match="at least 1"):
        theory.lora_parameters(4, 4, 0)


@pytest.mark.parametrize("stage, expected", [(0, 2000), (1, 2000), (2, 2000), (3, 500)])
def test_only_stage_3_shards_frozen_weights(stage, expected):
    assert (
        theory.frozen_bytes([600, 400], theory.ZeroConfig(stage=stage, persistence_threshold=0), ranks=4)
        == expected
    )


def test_stage_3_rounds_each_frozen_parameter_up_and_keeps_small_ones_gathered():
    config = theory.ZeroConfig(stage=3, persistence_threshold=7)
    assert theory.frozen_bytes([601, 7], config, ranks=4) == 2 * (151 + 2 + 8)


def test_states_are_those_of_the_trained_parameters_and_frozen_weights():
    config = theory.ZeroConfig(stage=2, reduce_bucket_size=0)
    alone, both = (
        theory.deepspeed_bytes([40], config, ranks=2),
        theory.fine_tuning_bytes([1000], [40], config, ranks=2),
    )
    assert {name: both[name] - alone[name] for name in both if both[name] != alone[name]} == {
        "parameters": 2000
    }


@pytest.mark.parametrize("dtype, element", [(torch.float32, 4), (torch.bfloat16, 2)])
def test_activations_of_an_adapted_gpt_are_those_saved(dtype, element):
    model = adapted_gpt().to(dtype)
    with SavedActivations(model) as saved:
        loss = model(*corpus.batch(0, 3, LENGTH))
    assert loss.requires_grad
    loss_and_weight = (
        2 * 4
    )  # counted by the formula, as the ledger sees them; autograd saves the weight alone
    assert saved.total == pytest.approx(
        theory.lora_activation_bytes(SIZE, 3, LENGTH, RANK, element) - loss_and_weight, abs=loss_and_weight
    )


def test_frozen_inputs_are_what_a_trained_block_would_keep_again():
    one, two = (models.GPTSize(width=32, heads=4, layers=layers) for layers in (1, 2))
    kept, again = (
        [theory.lora_activation_bytes(size, 1, 64, RANK, 2, keeps) for size in (one, two)]
        for keeps in (False, True)
    )
    block = theory.block_activation_bytes(1, 64, 32, 4, 2) + RANK * 2 * 64
    assert [again[1] - again[0], kept[1] - kept[0]] == [block, block - 5 * 2 * 64 * 32]
    assert again[0] - kept[0] == (5 + 1) * 2 * 64 * 32, "the input of the head, too"


@pytest.mark.parametrize("stage, weights", [(0, 2048 + 33), (2, 2048 + 33), (3, 512 + 9)])
def test_two_weights_of_four_bits_share_a_byte_and_stage_3_shards_no_scales(stage, weights):
    config = theory.ZeroConfig(stage=stage, persistence_threshold=0)
    assert theory.quantised_bytes([64 * 64, 66], config, ranks=4) == {
        "parameters": weights,
        "absmax": 4 * (64 + 2),
        "code": 128,
    }


def test_a_disk_takes_twelve_bytes_of_large_sub_groups_and_none_of_small_ones():
    config = theory.ZeroConfig(stage=3, persistence_threshold=0, reduce_bucket_size=0, sub_group_size=2**19)
    in_memory, files = theory.disk_bytes([2**20 + 2, 2**10], config, ranks=2, buffer_count=4)
    first, second = 2**19 + 1, 2**9
    assert files == 3 * [4 * 2**19 + 1024]
    assert in_memory["master weights"] == 4 * second and in_memory["optimizer states"] == 8 * second + 8
    assert (
        in_memory["gradients"] == 2 * (first + second) + 4 * second and in_memory["buffers"] == 4 * files[0]
    )
    with pytest.raises(ValueError, match="stage 3"):
        theory.disk_bytes([8], theory.ZeroConfig(stage=2))


def test_offload_leaves_two_bytes_and_moves_eighteen_per_rank():
    """Without buffers and padding: ZeRO-Offload's 2 bytes per parameter on the device; 12 + 4 + 2 on the
    host."""
    for stage, weights in ((1, 2000), (2, 2000), (3, 500)):
        config = theory.ZeroConfig(stage=stage, contiguous_gradients=False, persistence_threshold=0)
        places = theory.offload_bytes([1000], config, ranks=4, moment="after step")
        device, host = (sum(places[name].values()) for name in ("device", "host"))
        buffers = 2000 if stage < 3 else 0  # as large as the largest parameter, on either side
        kept = 2000 if stage == 2 else 0  # the gradient that touches the partition
        assert device - buffers - places["device"]["other"] == weights
        assert host - buffers - kept - 4 == 18 * 1000 / 4


def test_what_offload_bytes_does_not_cover_is_named():
    with pytest.raises(ValueError, match="stages 1 to 3 in bf16"):
        theory.offload_bytes([10], theory.ZeroConfig(stage=0))
    with pytest.raises(ValueError, match="after step"):
        theory.offload_bytes([10], theory.ZeroConfig(stage=1), moment="after backward")


def held_in_turn(stages, offload):
    """For every stage what a rank holds between micro-batches: by category; with offload on either side."""
    import deepspeed
    from deepspeed.accelerator import get_accelerator

    accelerator, pinned, found = get_accelerator(), [], []
    pin = accelerator.pin_memory
    accelerator.pin_memory = lambda tensor, *more, **options: (
        pinned.append(pin(tensor, *more, **options)) or pinned[-1]
    )
    for stage in stages:
        config = zero_config(stage, offload)
        pinned.clear()
        with Ledger() as ledger:
            model = adapted_gpt()
            trained = [one for one in model.parameters() if one.requires_grad]
            engine, *_ = deepspeed.initialize(model=model, model_parameters=trained, config=config)
            ledger.watch(engine)
            for micro in range(3):
                engine.backward(engine(*corpus.batch(micro, 1, LENGTH)))
                if micro == 2:
                    held = ledger.snapshot("between micro-batches")
                engine.step()
        states = [
            part
            for master, kept in engine.optimizer.optimizer.state.items()
            for part in (master, master.grad, *kept.values())
        ]
        storages = [one.untyped_storage() for one in pinned + states if isinstance(one, torch.Tensor)]
        host = sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())
        found.append(
            {"device": held.total - host - held["inputs"], "host": host} if offload else held.categories
        )
    return found


def zero_config(stage, offload):
    keys = {"offload_optimizer": {"device": "cpu", "pin_memory": True}} if offload else {}
    return configuration(stage, accumulation=2, **PLAIN, **keys)


@pytest.mark.ranks
def test_ranks_hold_what_is_predicted_with_frozen_weights():
    frozen, trained = sizes(adapted_gpt())
    for rank, reports in enumerate(
        launch(held_in_turn, ranks=2, arguments={"stages": (2, 3), "offload": False}, device="cpu")
    ):
        for stage, found in zip((2, 3), reports):
            exact = theory.fine_tuning_bytes(frozen, trained, zero_config(stage, False), ranks=2, rank=rank)
            assert {category: found[category] for category in exact} == exact


@pytest.mark.ranks
def test_ranks_hold_what_is_predicted_with_offload_on_either_side():
    frozen, trained = sizes(adapted_gpt())
    for rank, reports in enumerate(
        launch(held_in_turn, ranks=2, arguments={"stages": (1, 2, 3), "offload": True}, device="cpu")
    ):
        for stage, found in zip((1, 2, 3), reports):
            exact = theory.offload_bytes(trained, zero_config(stage, True), frozen=frozen, ranks=2, rank=rank)
            assert found == {place: sum(kinds.values()) for place, kinds in exact.items()}
