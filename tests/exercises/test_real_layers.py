"""Lesson 01's checks: real layers judge formulas, one quantity at a time."""

import inspect
import re
from types import SimpleNamespace

import nbformat
import numpy
import pytest
import torch
from matplotlib.colors import to_hex
from transformers import LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaDecoderLayer, apply_rotary_pos_emb
from helpers import layers, plots, recorded, theory
from helpers.course.exercises import transformer_layers as exercises
from helpers.course.exercises.against_layers import UNITS
from helpers.course.exercises.real_layers import REAL, Reads, config, counted, rotations, stream
from helpers.course.models.published import PUBLISHED
from helpers.paths import NOTEBOOKS
from helpers.tools.rehearsal.of_transformers import checkpointed
from helpers.tools.theory.llama import LETTERS, LlamaSize

llama = exercises.llama.solution


def test_an_answer_that_is_wrong_in_two_quantities_is_told_of_the_first():
    right = exercises.attention.solution

    def attention(b, s, h, a, k, d):
        wrong = {"parameters": 2 * h * a * d + h * k * d, "kept": 0}
        return right(b, s, h, a, k, d) | wrong

    said = exercises.attention.verdict(attention)
    assert " parameters where, by LlamaAttention, " in said
    assert said.endswith("keys and values have a matrix each")


@pytest.mark.parametrize(
    "answer, words",
    [
        (lambda b, s, h, f: 3 * h * f, "returns a number: return a dict with parameters, FLOPs, kept"),
        (lambda b, s, h, f: {"parameters": 3 * h * f}, "returns a dict without 'FLOPs'"),
        (lambda b, s, h, f: dict.fromkeys(UNITS, "many"), "nothing that is a number as 'parameters'"),
        (lambda b, s, h: 1, "the check calls it with (b, s, h, f)"),
        (lambda b, s, h, f: 1 / 0, "raised ZeroDivisionError for b="),
        (lambda b, s, h, f: None, "put your formula in the place of the dots"),
    ],
)
def test_what_is_no_set_of_three_numbers_is_said_in_words(answer, words):
    assert words in exercises.feed_forward.verdict(answer)


def test_every_check_draws_new_sizes():
    block = exercises.block
    drawn = {repr((block.verdict(block.solution), block.cases)) for _ in range(3)}
    assert len(drawn) == 3 and all("correct for 2 real layers" in one for one in drawn)


def test_every_rung_is_judged_by_a_layer():
    assert all(getattr(exercises, rung).solution.__name__ == f"{rung}_solution" for rung in REAL)


@pytest.mark.parametrize("name", [name for name, one in PUBLISHED.items() if one["model_type"] == "llama"])
def test_the_learners_formula_is_that_of_theory_and_of_the_real_model(name):
    size, found = LlamaSize.of(PUBLISHED[name]), llama(1, 8192, **layers.letters(name))
    assert {what: found[what] for what in ("parameters", "FLOPs")} == layers.counted(name)
    assert found["parameters"] == theory.gpt_parameters(size)
    loss = 4  # bytes, of which theory counts the result too
    assert found["kept"] + loss == theory.gpt_activation_bytes(size, 1, 8192, 2)


@pytest.mark.parametrize("name", ["Qwen3 0.6B", "Qwen3 1.7B"])
def test_qwen_has_norms_of_heads_that_the_formula_does_not_know(name):
    letters = layers.letters(name)
    missing = layers.counted(name)["parameters"] - llama(1, 8192, **letters)["parameters"]
    assert missing == 2 * letters["d"] * letters["L"]


def test_a_block_on_an_h100_keeps_what_the_formula_says_and_its_result():
    letters = {name: layers.letters("Llama 3 8B")[name] for name in "hakdf"}
    due = exercises.block.solution(1, 8192, **letters)["kept"] + 2 * 8192 * letters["h"]
    assert layers.recorded_block()["kept"] - due == 2 * 512  # two tensors of a few bytes


def test_a_model_on_an_h200_keeps_what_the_formula_says_but_for_gathered_weights():
    (run,) = recorded.runs("rehearsed_models", training="Llama, stage 3")
    built, forward = (phase["end"]["requested"] for phase in run.reports[0][:2])
    due = llama(2, 2048, **layers.letters("Llama 3.2 1B"))["kept"]
    assert due == pytest.approx(forward - built, rel=0.004)


@pytest.mark.parametrize("kernel", ["the lesson's", "eager"])
def test_what_a_block_keeps_with_explicit_attention_as_the_exercise_says(kernel):
    def more(s, a, k, d):  # than with the fused kernel
        scores = (1 if kernel == "the lesson's" else 4 * a) + 2 * a  # a mask, or the softmax in fp32
        return scores * s * s + 4 * s * (a - k) * d - 4 * a * s

    whole = exercises.block.solution(1, 8192, 4096, 32, 8, 128, 14336)["kept"] + more(8192, 32, 8, 128)
    assert round(whole / 1e9, 1) == {"the lesson's": 6.1, "eager": 14.6}[kernel]
    s, a, k, d = 40, 8, 2, 16
    if kernel == "eager":
        of, x_bsh = config(64, a, k, d), torch.randn(1, s, 64, dtype=torch.bfloat16, requires_grad=True)
        shared = rotations(of, x_bsh)
        kept = {}
        for kind in ("sdpa", "eager"):
            of._attn_implementation = kind
            shared["attention_mask"] = None if kind == "sdpa" else torch.zeros(1, 1, s, s).bfloat16()
            kept[kind] = counted(LlamaAttention(of, 0).bfloat16(), x_bsh, **shared)["kept"]
        assert kept["eager"] - kept["sdpa"] == more(s, a, k, d)
        return
    shown = {"torch": torch, "F": torch.nn.functional}
    exec(source_with("class Explicit"), shown)
    qkv = [torch.randn(1, heads, s, d).bfloat16().requires_grad_() for heads in (a, k, k)]
    explicit, fused = (exercises.kept_bytes.solution(shown[one](), *qkv) for one in ("Explicit", "Fused"))
    assert explicit - (fused - 2 * s * a * d) == more(s, a, k, d)  # its result is the next product's to keep


def test_checkpointed_a_real_model_keeps_what_the_formula_says():
    letters = {"h": 96, "a": 6, "k": 2, "d": 8, "f": 104, "L": 5, "V": 181}
    model = checkpointed(LlamaForCausalLM(config(**letters)).bfloat16())
    ids_bs = torch.randint(0, letters["V"], (3, 7))
    kept = counted(model, input_ids=ids_bs, labels=ids_bs)["kept"]
    shared = 4 * 7 * letters["d"] + 8 * 7  # rotations and positions, which no hook sees: closures hold them
    assert exercises.checkpointed.solution(3, 7, **letters, tied=False) == kept + shared


def test_the_attention_that_the_lesson_shows_is_what_the_fused_kernel_computes():
    shown = {"torch": torch, "F": torch.nn.functional}
    exec(source_with("class Explicit"), shown)
    q_basd, k_bksd, v_bksd = (torch.randn(2, heads, 9, 8) for heads in (6, 2, 2))
    results = [shown[kernel]()(q_basd, k_bksd, v_bksd) for kernel in ("Explicit", "Fused")]
    torch.testing.assert_close(*results)


def test_the_forward_pass_that_the_lesson_shows_is_that_of_transformers():
    shown = {"F": torch.nn.functional}
    exec(source_with("def forward(at, x)"), shown)
    of, x_bsh = config(96, a=6, k=2, d=8, f=104), stream(2, 7, 96)
    block = LlamaDecoderLayer(of, 0).bfloat16()
    shared = rotations(of, x_bsh)

    def heads(x):
        return x.unflatten(-1, (-1, 8)).transpose(1, 2)

    def turn(x):
        cos, sin = shared["position_embeddings"]
        return apply_rotary_pos_emb(heads(x), heads(x), cos, sin)[0]

    def attend(q, k, v):
        z = torch.nn.functional.scaled_dot_product_attention(q, k, heads(v), is_causal=True, enable_gqa=True)
        return z.transpose(1, 2).flatten(2)

    at = SimpleNamespace(turn=turn, attend=attend)
    at.norm_1, at.norm_2 = block.input_layernorm, block.post_attention_layernorm
    for part in (block.self_attn, block.mlp):
        for name, layer in part.named_children():
            setattr(at, name.removesuffix("_proj"), layer)

    class Shown(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.block = block

        def forward(self, x):
            return shown["forward"](at, x)

    torch.testing.assert_close(Shown()(x_bsh), block(x_bsh, **shared))
    tables = sum(table.nbytes for table in shared["position_embeddings"])  # which all blocks share
    due = exercises.block.solution(2, 7, 96, 6, 2, 8, 104)["kept"]
    assert counted(Reads(Shown()), x_bsh)["kept"] == due + tables


def test_deepspeeds_profiler_counts_one_more_for_each_element_of_a_silu():
    small = {"h": 64, "a": 4, "k": 2, "d": 16, "f": 160, "L": 4, "V": 256}
    model = layers.small_llama(small, checkpointing=False)
    found = layers.profiled(SimpleNamespace(module=model), torch.randint(0, 256, (2, 64)))
    assert found - llama(2, 64, **small, tied=False)["FLOPs"] == 4 * 2 * 64 * 160


def test_recorded_steps_have_these_mfus_by_days():
    days, mfus = exercises.days.solution, {}
    for name, (seconds, step) in layers.timed().items():
        mfus[name.replace("\n", " ")] = round(100 * 86_400 * days(**step, mfu=1) / seconds)
    assert mfus == {
        "one block": 57,
        "16 blocks, loss and update": 51,
        "the same checkpointed": 42,
        "32 blocks 4 GPUs, ZeRO-3 8 × 2 sequences": 39,
        "32 blocks 4 GPUs, ZeRO-3 16 × 1 sequence": 35,
    }


def test_a_recorded_steps_flops_are_those_that_the_lesson_counts():
    of, (one, half, again, *_) = layers.letters("Llama 3 8B"), (step for _, step in layers.timed().values())
    blocks = exercises.block.solution(1, 8192, *(of[letter] for letter in "hakdf"))["FLOPs"]
    assert one["forward"] * 8192 == pytest.approx(blocks)
    assert half == again and half["forward"] * 8192 == pytest.approx(
        llama(1, 8192, **of | {"L": 16})["FLOPs"]
    )


def test_what_stays_is_all_that_a_block_keeps_and_each_tensor_is_as_large_as_its_box():
    card = layers.letters("Llama 3 8B")
    sizes = layers.stays(block := layers.narrow_block(**card))
    of_norms = sum(sizes[name] for name in ("x in fp32", "1 / rms", "x / rms", "y"))  # of the second one
    assert sum(layers.kept(block)) == sum(sizes.values()) + of_norms
    drawn = str(plots.opened_block(card, 8192, "Title")).replace("\n", " ")
    bytes_of = {name: 2 * 8192 * 4096 * size for name, size in sizes.items() if "1 /" not in name}
    assert all(
        re.search(f"{re.escape(name)} s × .{{1,2}} {size / 1e6:.0f} MB", drawn)
        for name, size in bytes_of.items()
    )


def test_the_filled_boxes_of_the_opened_block_are_what_the_formula_says():
    card = {name: layers.letters("Llama 3 8B")[name] for name in "hakdf"}
    kept = layers.stays(layers.narrow_block(**card))
    drawn = str(plots.opened_block(card, 8192, "Title", kept=kept)).replace("\n", " ")
    due = exercises.block.solution(1, 8192, **card)["kept"] - 2 * 4 * 8192  # without 1 / rms of two norms
    assert drawn.endswith(f": {due / 1e6:,.0f} MB.")


@pytest.mark.parametrize("right", [True, False])
def test_a_learners_list_names_all_tensors_and_is_drawn_beside_the_answer(right):
    """Untouched, it is no guess."""
    card, told = layers.letters("Llama 3 8B"), {}
    exec(source_with("stays = "), told)
    kept = layers.stays(layers.narrow_block(**card))
    assert set(kept) - {"1 / rms"} < set(told["stays"].split(" | "))
    labels = legend(plots.opened_block(card, 8192, "Title", kept=kept, guessed=told["stays"]))
    assert labels == legend(plots.opened_block(card, 8192, "Title", kept=kept))
    guessed = " |".join(kept) if right else ["x", "no such tensor"]
    marked = plots.opened_block(card, 8192, "Title", kept=kept, guessed=guessed)
    assert legend(marked) - labels == {"kept, not on your list", "on your list, not kept"}
    colours = [to_hex(patch.get_facecolor()).upper() for patch in marked.figure.axes[0].patches]
    assert colours.count("#F4C7BC") == (0 if right else 2)  # the x of both rows


def legend(plot):
    return {text.get_text() for text in plot.figure.axes[0].get_legend().get_texts()}


def test_by_the_losses_fit_the_job_is_best_trained_on_about_20_tokens_for_each_parameter():
    """As the lesson says; with so many FLOPs as 20 tokens for each of the 8 B parameters take."""
    flops = 6 * 8e9 * 160e9

    def of(parameters):
        return float(layers.loss(parameters, flops / 6 / parameters))

    assert of(8e9) == min(of(8e9 * 2**power) for power in range(-3, 4))
    assert of(4e9) > of(8e9) < of(16e9)


def test_compiled_a_norm_keeps_its_input_and_gpt2_gains_nothing():
    from helpers import models

    assert [round(sum(layers.kept(norm))) for norm in layers.norms().values()] == [1, 3, 1]
    block = models.Block(models.TINY)
    assert sum(layers.kept(block)) == sum(layers.kept(block, compiled=True))


def source_with(words, of=NOTEBOOKS):
    """Of the only cell of the lesson, or of a companion in this folder, that has these words."""
    cells = nbformat.read(of / "01_transformer_layers.ipynb", as_version=4).cells
    (source,) = (cell.source for cell in cells if words in cell.source)
    return source


def test_the_lessons_alphabet_is_that_of_the_code():
    told = {}
    for line in source_with("| letter | meaning |", NOTEBOOKS / "more").splitlines():
        if found := re.match(r"\| (\$.*?\$) \|.*?\| (`.*?`) \|", line):
            told |= zip(re.findall(r"\$\\?(\w+)\$", found[1]), re.findall(r"`(\w+)`", found[2]), strict=True)
    assert LETTERS.items() <= told.items()
    arguments = {
        name for one in ("llama_flops", "ideal_bytes") for name in inspect.signature(named(one)).parameters
    }
    assert {told["b"], told["s"], told["Psi"], told["N"]} <= arguments


def named(function):
    return getattr(theory.llama if function == "llama_flops" else theory, function)


ODD = exercises.odd_model.solution()


@pytest.mark.parametrize(
    "change, words",
    [
        ({"k": 6}, "does not show the bug `keys at full heads`: k equals a"),
        ({"h": 48}, "does not show the bug `d = h / a`: a times d equals h"),
        ({"tied": False}, "does not show the bug `never tied`: the head is not tied"),
        ({"L": 0}, "L must be a whole number from 1 on"),
        ({"tied": 1}, "tied must be True or False"),
        ({"k": 4}, "a must be a multiple of k"),
        ({"h": 100}, "unless h is a multiple of a"),
        ({"n": 4}, "return a dict with h, a, k, d, f, L, V, tied"),
        ({"L": 100_000}, "a small model is enough, and yours has 5,856,024,672 parameters"),
        ({}, "correct for all bugs"),
    ],
)
def test_a_model_that_hides_a_bug_is_told_which(change, words):
    def odd_model():
        return ODD | change

    assert words in exercises.odd_model.verdict(odd_model)


def test_a_real_model_of_these_letters_is_counted():
    found = llama(1, 8192, **ODD)
    assert {what: found[what] for what in ("parameters", "FLOPs")} == layers.counted(ODD)


@pytest.mark.parametrize("what", ["parameters", "FLOPs", "kept"])
def test_letters_made_with_numpy_are_counted_too(what):
    of = {letter: (numpy.bool_ if letter == "tied" else numpy.int64)(value) for letter, value in ODD.items()}
    assert layers.tests_of({"it": (of, what)})["it"](llama) == 1


def test_the_bytes_of_a_narrow_model_are_those_of_the_formula():
    test = layers.tests_of({"it": ("Mistral NeMo 12B", "kept")})["it"]
    wrong = {bug for bug, formula in layers.miscounts(llama).items() if test(formula) != 1}
    assert test(llama) == 1
    assert wrong == {"keys at full heads", "d = h / a", "a norm keeps its input", "repeated keys are kept"}


def test_the_fewest_tests_that_catch_all():
    assert layers.fewest({"one": ["A", "B"], "two": ["B", "C"], "three": ["C"]}) == 2
    assert layers.fewest({"one": ["A", "B"], "two": ["B"]}) == 1


def test_metas_gpu_hours_are_far_from_one_mfu():
    days, mfus = exercises.days.solution, {}
    for name, of in layers.TRAINED.items():
        per_token = llama(1, of["s"], **layers.letters(name))["FLOPs"] / of["s"]
        at_peak = 24 * days(of["tokens"], per_token, 1, theory.PEAKS[of["gpu"]], 1)
        mfus[name] = round(100 * at_peak / of["hours"])
    assert mfus == {"Llama 2 7B": 45, "Llama 3 8B": 19}
