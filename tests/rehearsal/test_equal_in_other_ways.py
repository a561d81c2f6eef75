"""Models of transformers, adapters, experts, offload, pipelines and AutoTP: rehearsed ranks beside real ones
on the CPU.

A sample runs always; `make rehearse-all` runs every case and prints how many figures were equal.
"""

import os

import pytest
from helpers import launch, preload, rehearse
from tests.rehearsal import cases, features

pytestmark = pytest.mark.ranks
ALL = "REHEARSE_ALL" in os.environ
SAMPLE = (
    "Llama, stage 3",
    "Mixtral, stage 2",
    "adapters, stage 2",
    "offload, stage 2",
    "two pipelines of two, stage 1",
    "AutoTP",
)


def expected(name):
    """What is known to differ: before its first step AutoTP sends a batch as a pickled object, in two
    messages (its length, its bytes), and a rehearsal has none to send."""
    return {"storage"} if name.startswith("AutoTP") else set()


@pytest.fixture(scope="module", autouse=True)
def libraries():
    preload("transformers.LlamaForCausalLM", "transformers.GlmForCausalLM", "peft")


@pytest.mark.parametrize("name", features.CASES if ALL else SAMPLE)
def test_every_figure_is_that_of_real_ranks(name):
    function, ranks, arguments = features.CASES[name]
    real, count = launch(function, ranks, arguments, device="cpu"), 0
    for rank in sorted({0, ranks - 1} if ALL else {ranks - 1}):
        rehearsed = rehearse(function, ranks, rank, arguments)
        assert real[rank]["messages"], "nothing was counted"
        different = cases.differences(real[rank], rehearsed)
        if name.startswith("AutoTP"):
            sent, rehearsed_sent = (set(messages) for messages in different.pop("messages"))
            (length, _), (pickled, _) = sorted((message[1], message) for message in sent - rehearsed_sent)
            assert length == 8 < pickled and rehearsed_sent <= sent, (sent, rehearsed_sent)
        assert {what.split()[0] for what in different} <= expected(name), f"rank {rank}: {different}"
        count += cases.figures(rehearsed) - (len(rehearsed["storages"]) if different else 0)
    print(f"{name}: {count:,} figures equal")
