"""The model that everything is measured on, and the text that it reads."""

import hashlib

import pytest
import torch
from helpers import corpus, launch, models
from helpers.course.models import GPTSize


@pytest.mark.parametrize(
    "options, word",
    [({"width": 10, "heads": 3}, "multiple"), ({"layers": 0}, "layers"), ({"context": 2.5}, "context")],
)
def test_a_size_that_makes_no_model_is_refused(options, word):
    with pytest.raises(ValueError, match=word):
        GPTSize(**options)


def test_both_attention_kernels_compute_the_same():
    ids, _ = corpus.batch(0, 2, 32)
    with torch.no_grad():
        fused, explicit = (models.build(models.GPT, kernel=kernel)(ids) for kernel in ("sdpa", "explicit"))
    assert torch.allclose(fused, explicit, atol=1e-5)


def test_an_unknown_kernel_is_refused():
    with pytest.raises(ValueError, match="kernel"):
        models.GPT(kernel="magic")


def test_checkpointing_changes_no_gradient():
    ids, targets = corpus.batch(0, 2, 32)
    gradients = []
    for checkpointing in (False, True):
        model = models.build(models.GPT, checkpointing=checkpointing)
        model(ids, targets).backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*gradients))


def test_the_future_is_not_seen():
    model = models.build(models.GPT)
    ids, _ = corpus.batch(0, 1, 16)
    changed = ids.clone()
    changed[0, 10:] = 0
    assert torch.allclose(model(ids)[0, :10], model(changed)[0, :10], atol=1e-6)


def shard_shapes(stage):
    import deepspeed

    deepspeed.init_distributed()
    config = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": stage}}
    model = models.build(models.GPT, config=config)
    weight = model.embedding.tokens.weight
    with deepspeed.zero.GatheredParameters([weight], enabled=stage == 3):
        return tuple(weight.shape), round(weight.std().item(), 3), hasattr(weight, "ds_tensor")


@pytest.mark.ranks
@pytest.mark.parametrize("stage", [2, 3])
def test_build_partitions_exactly_at_stage_3_and_initialises_right(stage):
    for shape, deviation, partitioned in launch(
        shard_shapes, ranks=2, arguments={"stage": stage}, device="cpu"
    ):
        assert (shape, deviation, partitioned) == ((256, 64), 0.02, stage == 3)


def test_the_text_is_the_tested_one():
    import importlib.metadata

    if importlib.metadata.version("deepspeed") != corpus.TESTED[0]:
        pytest.skip("another DeepSpeed, another text")
    assert corpus.difference(corpus.text()) is None


def test_the_text_is_kept_in_one_file_which_counts_only_while_it_is_the_tested_text(monkeypatch, tmp_path):
    monkeypatch.setattr(corpus, "WORK", tmp_path / "work")
    read, whole = corpus.text.__wrapped__, corpus.text()
    monkeypatch.setattr(corpus, "TESTED", (corpus.TESTED[0], hashlib.sha256(whole).hexdigest()))
    assert read() == whole
    (kept,) = (tmp_path / "work").iterdir()
    kept.write_bytes(b"something else")
    assert read() == whole and kept.read_bytes() == whole
    monkeypatch.setattr(corpus, "files", list)
    assert read() == whole  # from the one file


def test_another_text_is_said_in_words():
    assert "losses will not equal" in corpus.difference(b"something else")


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_ranks_share_one_global_batch(ranks):
    whole, targets = corpus.batch(7, 8, 16)
    parts = [corpus.batch(7, 8, 16, rank, ranks) for rank in range(ranks)]
    assert torch.equal(whole, torch.cat([ids for ids, _ in parts]))
    assert torch.equal(targets, torch.cat([following for _, following in parts]))


def test_targets_are_the_next_tokens():
    ids, targets = corpus.batch(3, 4, 16)
    assert torch.equal(ids[:, 1:], targets[:, :-1])
    assert bytes(ids[0].tolist()) in corpus.text()


@pytest.mark.parametrize(
    "sequences, rank, ranks, word",
    [(3, 0, 2, "multiple of 2"), (4, 2, 2, "rank must be"), (4, -1, 2, "rank must be")],
)
def test_batches_that_cannot_be_cut_are_refused(sequences, rank, ranks, word):
    with pytest.raises(ValueError, match=word):
        corpus.batch(0, sequences, 8, rank, ranks)


def test_rotated_queries_and_keys_know_their_distance_only():
    random = torch.Generator().manual_seed(0)
    query, key = (torch.randn(1, 1, 1, 8, generator=random) for _ in range(2))

    def score(place, other):
        return (models.rotated(query, first=place) * models.rotated(key, first=other)).sum()

    assert torch.allclose(score(7, 3), score(104, 100), atol=1e-5) and not torch.allclose(
        score(7, 3), score(7, 2), atol=1e-3
    )


def test_parts_of_a_llama_block_must_fit_each_other():
    with pytest.raises(ValueError, match="multiple"):
        models.LlamaParts(64, 4, 3, 160)


def test_a_batch_of_wrong_numbers_is_refused_in_words():
    for change in ({"sequences": 0}, {"length": 0}, {"ranks": 0}, {"sequences": -2}, {"length": 10**7}):
        with pytest.raises(ValueError, match=f"{next(iter(change))} must be from 1 to .*, not "):
            corpus.batch(0, **{"sequences": 2, "length": 8, "ranks": 1, **change})
    for change in ({"sequences": 2.0}, {"length": True}, {"ranks": "1"}, {"ranks": None}):
        with pytest.raises(TypeError, match=f"{next(iter(change))} must be from 1 to .*no whole number"):
            corpus.batch(0, **{"sequences": 2, "length": 8, "ranks": 1, **change})
