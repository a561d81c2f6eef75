"""What DeepSpeed 0.19.8 does without a word when weights are frozen or offloaded, as lesson 12 shows it.

Each test passes while it does so.  One that fails says which sentence of the lesson is to be corrected, now
that it is mended.
"""

import warnings

import pytest
from helpers import Ledger, corpus, launch, models
from helpers.course.recording import nvme, qlora
from helpers.course.recording.experiment import SHAPES, SIZES
from tests.support import configuration

pytestmark = pytest.mark.ranks

SIZE, LENGTH = models.GPTSize(layers=2), 16
MENDED = 'DeepSpeed has changed: correct lesson 12, "{}"'


def engine_of(model, config):
    import deepspeed

    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return deepspeed.initialize(model=model, model_parameters=trained, config=config)[0], trained


def without_inputs_of_gradients():
    """How many trained tensors change in a step of reentrant checkpointing behind a frozen embedding, and
    DeepSpeed's words about it."""
    from torch.utils.checkpoint import checkpoint

    model = models.build(models.GPT, SIZE)
    model.embedding.requires_grad_(False)
    for block in model.blocks:
        block.forward = lambda x, forward=block.forward: checkpoint(forward, x, use_reentrant=True)
    config = configuration(2, bf16=False)
    config["optimizer"]["params"]["weight_decay"] = 0.0
    engine, trained = engine_of(model, config)
    before = [parameter.detach().clone() for parameter in trained]
    with warnings.catch_warnings(record=True) as warned:
        engine.backward(engine(*corpus.batch(0, 1, LENGTH)))
        engine.step()
    said = [str(one.message) for one in warned if "torch" not in one.filename]
    return sum(not one.equal(other) for one, other in zip(before, trained)), len(trained), said


def frozen_inputs_kept():
    """Bytes of activations with a frozen feed-forward at stage 3: with torch's own linear function, and with
    DeepSpeed's (which then stays)."""
    kept = []
    for replaced in (False, True):
        with Ledger() as ledger:
            model = models.build(models.GPT, SIZE)
            model.blocks[1].feed_forward.requires_grad_(False)
            engine, _ = engine_of(model, configuration(3, memory_efficient_linear=replaced))
            ledger.watch(engine)
            loss = engine(*corpus.batch(0, 1, LENGTH))
            kept.append(ledger.snapshot("after forward")["activations"])
            engine.backward(loss)
    return kept


def parameters_on_the_device():
    """Bytes of parameters at stage 2 with and without `offload_param`, and what was said about the key."""
    held = []
    for keys in ({}, {"offload_param": {"device": "cpu", "pin_memory": True}}):
        with Ledger() as ledger, warnings.catch_warnings(record=True) as warned:
            engine, _ = engine_of(models.build(models.GPT, SIZE), configuration(2, **keys))
            ledger.watch(engine)
            held.append((type(engine.optimizer).__name__, ledger.snapshot("ready")["parameters"]))
    return held, [str(one.message) for one in warned if "offload_param" in str(one.message)]


def adapters():
    """At stage 3: the dtype of peft's adapters in a bf16 model, and the elements that peft would save without
    gathering."""
    from peft import get_peft_model_state_dict

    config = configuration(3)
    model = models.with_adapters(models.build_transformers(models.chatglm(models.TINY_CHATGLM), config))
    _, trained = engine_of(model, config)
    with warnings.catch_warnings(record=True):
        saved = get_peft_model_state_dict(model)
    return str(trained[0].dtype), sum(tensor.numel() for tensor in saved.values())


def all_of_them():
    import deepspeed

    deepspeed.init_distributed()
    return {
        one.__name__: one()
        for one in (without_inputs_of_gradients, frozen_inputs_kept, parameters_on_the_device, adapters)
    }


@pytest.fixture(scope="module")
def found():
    return launch(all_of_them, ranks=2, device="cpu")[0]


def test_reentrant_checkpointing_behind_a_frozen_embedding_trains_the_final_norm_only(found):
    changed, trained, said = found["without_inputs_of_gradients"]
    assert (changed, trained, said) == (2, 26, []), MENDED.format("Checkpointing behind frozen weights")


def test_stage_3_keeps_inputs_of_frozen_layers(found):
    own, replaced = found["frozen_inputs_kept"]
    assert replaced - own == 5 * 2 * LENGTH * SIZE.width, MENDED.format("Stage 3 keeps more")


def test_stage_2_ignores_offloaded_parameters_without_a_word(found):
    (plain, offloaded), said = found["parameters_on_the_device"]
    assert plain == offloaded and not said, MENDED.format("stage 2 accepts the key and ignores it")


def test_adapters_added_to_a_partitioned_model_stay_in_fp32(found):
    assert found["adapters"][0] == "torch.float32", MENDED.format("nobody casts them, so they stay in fp32")


def test_adapters_of_stage_3_are_saved_empty(found):
    assert found["adapters"][1] == 0, MENDED.format("Adapters that are saved empty")


DISK = {
    "disk, sub-groups under 1 MiB": "stay in memory",
    "disk, stage 2": "writes no file",
    "disk, pipelined": "AssertionError",
}


@pytest.mark.parametrize("place", DISK)
def test_offload_to_a_disk_goes_wrong_as_recorded(place, tmp_path):
    """Where DeepSpeed's op is compiled already; nothing here compiles it."""
    if reason := nvme.missing():
        pytest.skip(reason)
    arguments = {"size": SIZES["3.2M"], "config": nvme.configuration(2, place), "scratch": str(tmp_path)}
    for report in launch(nvme.nvme, ranks=2, arguments=arguments, device="cpu", timeout=120):
        found = {
            "stay in memory": not report["raised"] and report["held"]["master weights"] > 0,
            "writes no file": not report["raised"] and not report["files"],
            "AssertionError": report["raised"].startswith("AssertionError"),
        }
        assert found[DISK[place]], MENDED.format("Offload to a disk")


def test_weights_of_four_bits_are_silently_wrong_at_stage_3_in_evaluation_mode(tmp_path):
    """Where bitsandbytes is installed and packs weights for this CPU."""
    if reason := qlora.missing():
        pytest.skip(reason)
    given = {
        "shape": SHAPES["tiny"],
        "config": qlora.configuration(2, 3),
        "bits": 4,
        "scratch": str(tmp_path),
    }
    right, wrong = (
        launch(qlora.qlora, ranks=2, arguments=given | {"train": train}, device="cpu")[0]
        for train in (True, False)
    )
    if not wrong["packed"]:
        pytest.skip("bitsandbytes packs no weights on this CPU")
    assert abs(right["losses"][1] - wrong["losses"][1]) > 0.02, MENDED.format("Four bits")
