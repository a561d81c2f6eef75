"""`--lora`, `--qlora` and `--frozen`: beside real ranks on the CPU, and beside what was recorded."""

import dataclasses
import json

import pytest
from helpers import launch, preload, recorded, rehearse
from helpers.course.models.finetuning import ADAPTED, CHATGLM_6B
from helpers.course.recording.experiment import SHAPES
from helpers.course.recording.finetune import FINE_TUNING
from helpers.tools.forecast import advising
from helpers.tools.forecast.command_line import main
from helpers.tools.rehearsal import adapting, question
from helpers.tools.rehearsal.adaptations import Adaptation
from helpers.tools.rehearsal.fitting import two_steps
from tests.rehearsal import adapted, cases, features

LLAMA = features.shape("Llama").to_diff_dict() | {"model_type": "llama"}
BF16 = {"bf16": {"enabled": True}, "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1}
EVERY = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@pytest.fixture(scope="module", autouse=True)
def libraries():
    preload("peft", "transformers.LlamaForCausalLM", "transformers.GlmForCausalLM")


def asked(stage, wanted, checkpointing=False, **zero):
    config = BF16 | {"zero_optimization": {"stage": stage, **zero}}
    return question.ask(LLAMA, config, 2, features.SEQUENCE, 1, checkpointing, wanted)


# --- real ranks

SCRIPTS = {  # name: (a stage, what the script has, what the command is asked, checkpointing)
    **{f"LoRA, stage {stage}": (stage, {"lora": {"r": 4}}, Adaptation(4), False) for stage in (0, 2, 3)},
    "LoRA, stage 3, checkpointing": (3, {"lora": {"r": 4}}, Adaptation(4), True),
    "LoRA by names, stage 2, checkpointing": (
        2,
        {"lora": {"r": 3, "target_modules": list(EVERY)}},
        Adaptation(3, ("all-linear",)),
        True,
    ),
    **{
        f"frozen, stage {stage}": (stage, {"frozen": "embed"}, Adaptation(frozen=("*embed*",)), True)
        for stage in (2, 3)
    },
}


@pytest.mark.ranks
@pytest.mark.parametrize("name", SCRIPTS)
def test_every_byte_is_that_of_a_users_script_in_real_ranks(name):
    stage, script, wanted, checkpointing = SCRIPTS[name]
    given = {"stage": stage, "checkpointing": checkpointing, **script}
    real = launch(adapted.as_a_user, 2, given, device="cpu")
    config, one = cases.keys(stage), asked(stage, wanted, checkpointing)
    for rank in range(2):
        found = rehearse(adapted.as_the_command, 2, rank, {"question": one, "config": config})
        assert cases.differences(real[rank], found) == {}
    one = dataclasses.replace(one, config=config)
    states = rehearse(two_steps, 2, 1, {"question": one}, asked=[])["states"]
    held = {moment: categories for moment, categories, _ in real[1]["moments"]}["backward 1.0"]
    assert {category: states.get(category, 0) for category in held} == held | {"inputs": 0}


@pytest.mark.ranks
@pytest.mark.parametrize("stage, checkpointing", [(0, False), (2, True), (3, False), (3, True)])
def test_deepspeed_does_in_a_rehearsal_what_it_does_with_packed_weights_in_real_ranks(stage, checkpointing):
    given = {"question": asked(stage, Adaptation(4, in_four_bits=True), checkpointing)}
    given["config"] = cases.keys(stage)
    real = launch(adapted.as_the_command, 2, given, device="cpu")
    for rank in range(2):
        found = rehearse(adapted.as_the_command, 2, rank, given)
        assert cases.differences(real[rank], found) == {}


# --- recordings

IN_FOUR_BITS = [run for run in recorded.runs("qlora", bits=4, train=True) if run.reports]


@pytest.mark.ranks
@pytest.mark.parametrize("run", IN_FOUR_BITS, ids=[str(run.arguments["stage"]) for run in IN_FOUR_BITS])
def test_the_stand_in_holds_what_bitsandbytes_held(run):
    """Packed weights, their scales and codes, with real bitsandbytes on two CPU ranks at every stage."""
    assert len(IN_FOUR_BITS) == 4
    given = {"shape": SHAPES[run.arguments["shape"]], "config": run.configuration}
    for rank in range(2):
        assert rehearse(adapted.in_four_bits, 2, rank, given, asked=[]) == run.reports[rank]["held"]


TUNED = [
    run
    for run in recorded.runs("finetune", shape="6.2B")
    if run.reports
    and (way := FINE_TUNING[run.arguments["case"]]).fp32_adapters
    and way.chunks == 1
    and way.checkpointing
]
BATCH = 8_192 * 2 * 8  # bytes of a recorded batch: tokens and targets
LOSS = 8  # bytes: transformers keeps a loss in fp32 and divides it


@pytest.mark.ranks
@pytest.mark.parametrize("run", TUNED, ids=[run.arguments["case"] for run in TUNED])
def test_a_fine_tuning_on_a_gpu_is_rehearsed_to_the_byte_but_for_its_batch(run):
    """6.2 billion parameters, 8,192 tokens.  The experiment holds its batch and has a loss of its own."""
    way, (_, tokens) = FINE_TUNING[run.arguments["case"]], SHAPES["6.2B"]
    model = CHATGLM_6B | {"model_type": "glm", "dtype": "bfloat16", "pad_token_id": 0, "eos_token_id": 1}
    wanted = Adaptation(8, ADAPTED)
    one = question.ask(model, run.configuration, run.ranks, tokens, 1, way.checkpointing, wanted)
    found = rehearse(two_steps, run.ranks, 0, {"question": one}, device="cuda", asked=[])
    held = run.reports[0]["held"]
    states = held["after backward"]["categories"]
    assert {name: found["states"].get(name, 0) for name in states} == states | {"inputs": 0}
    for phase, missing in {"forward": -LOSS, "backward": BATCH, "step": BATCH}.items():
        assert held[f"after {phase}"]["peak"] - sum(found["peaks"][phase].values()) == missing


# --- what stage 3 divides


@pytest.mark.ranks
def test_stage_3_divides_frozen_weights():
    """DeepSpeed's issue 5109 asks; with adapters they are nearly all there is."""
    held = {}
    for stage in (2, 3):
        one = asked(stage, Adaptation(4), stage3_param_persistence_threshold=0)
        found = rehearse(two_steps, 2, 0, {"question": one}, device="cuda", asked=[])
        held[stage] = found["states"]["parameters"]
        frozen, trained = (sum(found["kinds"][kind].values()) for kind in ("frozen", "trained"))
    assert held == {2: 2 * (frozen + trained), 3: frozen + 2 * trained}  # adapters stay fp32 at stage 3


# --- what the command says


def command(folder, *more, stage=2, model=LLAMA, **sections):
    """Run it; its exit status."""
    (folder / "model.json").write_text(json.dumps(model))
    config = BF16 | {"zero_optimization": {"stage": stage}} | sections
    (folder / "ds.json").write_text(json.dumps(config))
    files = ("--model", str(folder / "model.json"), "--deepspeed", str(folder / "ds.json"))
    return main([*files, "--ranks", "2", "--sequence", "16", "--only-rank", "0", *more])


SAID = [  # what is asked, the stage, what is said
    (
        ("--lora", "4"),
        2,
        ["896 trained parameters in bf16, 34,976 frozen in bf16,\nZeRO stage 2", "casts them to bf16"],
    ),
    (("--lora", "4"), 3, ["896 trained parameters in fp32", "stage 3 leaves them so"]),
    (
        ("--qlora", "4,all-linear"),
        3,
        [
            "4,096 trained parameters in bf16, 16,544 frozen in bf16 and 18,432 in 4 bits",
            "NF4",
            "stand-in",
            "stage 3 saves little",
        ],
    ),
    (("--frozen", "embed_tokens", "--frozen", "norm,layers.0"), 2, [" frozen in bf16"]),
]


@pytest.mark.ranks
@pytest.mark.parametrize("options, stage, said", SAID)
def test_what_is_trained_is_said(options, stage, said, tmp_path, capsys):
    assert command(tmp_path, *options, stage=stage) == 0
    found = capsys.readouterr().out
    assert all(words in found for words in said), found
    assert all(len(line) <= 110 for line in found.splitlines())


REFUSED = [
    (("--lora", "0"), "--lora begins with a rank of 1 or more, as --lora 16, not '0'"),
    (("--qlora", "-3"), "--qlora begins with a rank of 1 or more"),
    (("--lora", "many,q_proj"), "not 'many'"),
    (("--lora", "8,"), "--lora 8, names an empty target"),
    (("--lora", "8,nobody"), "no layer of LlamaForCausalLM is called nobody: name some, as down_proj"),
    (("--lora", "8,q_proj,nobody"), "is called nobody"),
    (("--lora", "8,mlp"), "peft refuses the targets mlp: Target module LlamaMLP"),
    (("--lora", "8", "--qlora", "8"), "--lora and --qlora are two ways to do the same"),
    (("--lora", "8", "--frozen", "norm"), "--lora freezes the whole model already: leave --frozen out"),
    (
        ("--frozen", "nobody"),
        "--frozen nobody fits no parameter; their names are as model.embed_tokens.weight",
    ),
    (("--frozen", "norm,nobody"), "--frozen nobody fits no parameter"),
    (("--frozen", "*"), "--frozen * fits every parameter: nothing is left to train"),
    (("--frozen", "model", "--frozen", "lm_head"), "--frozen model,lm_head fits every parameter"),
    (("--frozen", ","), "--frozen names no pattern"),
]


@pytest.mark.parametrize("options, words", REFUSED, ids=[" ".join(options) for options, _ in REFUSED])
def test_what_cannot_be_adapted_is_refused_in_a_sentence(options, words, tmp_path, capsys):
    assert command(tmp_path, *options) == 2
    said, problem = capsys.readouterr()
    assert said == "" and words in problem
    assert len(problem.strip().splitlines()) == 1


def test_a_model_for_which_peft_knows_no_layers_is_asked_for_some(tmp_path, capsys):
    model = LLAMA | {"model_type": "olmo2", "pad_token_id": 0}
    assert command(tmp_path, "--lora", "8", model=model) == 2
    assert "peft knows no layers for LoRA in olmo2: name some" in capsys.readouterr().err
    question.ask(model, BF16, 2, 16, adaptation=Adaptation(8, ("all-linear",)))


def test_packed_weights_in_the_hosts_memory_are_refused():
    offloaded = {"offload_param": {"device": "cpu"}}
    asked(3, Adaptation(4), **offloaded)
    with pytest.raises(question.BadQuestion, match="--qlora with offload_param is not rehearsed"):
        asked(3, Adaptation(4, in_four_bits=True), **offloaded)


def test_a_head_beside_adapters_is_refused_at_stage_3_which_asserts_one_type(tmp_path, capsys):
    model = LLAMA | {"architectures": ["LlamaForTokenClassification"]}
    assert command(tmp_path, "--lora", "4", stage=3, model=model) == 2
    assert "its head in bf16 beside adapters in fp32, and stage 3 fails" in capsys.readouterr().err
    question.ask(model, BF16, 2, 16, adaptation=Adaptation(4))


def test_a_question_that_is_changed_keeps_its_adaptation():
    wanted = Adaptation(4, ("q_proj",), in_four_bits=True)
    one = asked(2, wanted)
    assert one.adaptation == wanted
    assert all(change.of(one).adaptation == wanted for change in list(advising.changes(one))[:3])


def test_patterns_fit_whole_names_and_parts_of_them():
    def left(*patterns):
        model = transformers.LlamaForCausalLM(features.shape("Llama"))
        adapting.freeze(model, patterns)
        return {name for name, parameter in model.named_parameters() if parameter.requires_grad}

    import transformers

    every = {name for name, _ in transformers.LlamaForCausalLM(features.shape("Llama")).named_parameters()}
    assert every - left("embed_tokens") == {"model.embed_tokens.weight"}
    assert every - left("model.norm.weight") == {"model.norm.weight"}
    assert every - left("layers.[1-9]") == {name for name in every if name.startswith("model.layers.1.")}
    assert every - left("*norm*") == {name for name in every if "norm" in name}
