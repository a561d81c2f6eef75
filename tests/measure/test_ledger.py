"""The ledger against torch's profiler, and against itself."""

import gc
import itertools
import pickle
import weakref

import pytest
import torch
from helpers import corpus, launch, models, theory
from helpers.tools.measure.ledger import CATEGORIES, Ledger, OutOfMemory
from helpers.tools.measure.saved import SavedActivations
from helpers.tools.measure.traffic import Traffic
from tests.support import configuration


def profiled_steps():
    """Two training steps of a GPT under the ledger and under torch's profiler: (current, peak) of either, in
    bytes.

    All is built inside, since the profiler drops what becomes of blocks that it did not see being allocated.
    """
    from torch.profiler import ProfilerActivity, profile

    ids, targets = corpus.batch(0, 2, 64)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler, Ledger("cpu") as ledger:
        ids, targets = ids.clone(), targets.clone()
        model = models.GPT()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        for _ in range(2):
            model(ids, targets).backward()
            optimizer.step()
            optimizer.zero_grad()
        current, peak = ledger.current, ledger.peak
    changes = [
        event.nbytes() for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"
    ]
    running = list(itertools.accumulate(changes))
    return (current, peak), (running[-1], max(running))


@pytest.mark.ranks
def test_equals_torchs_profiler_to_the_byte():
    ledger, profiler = launch(profiled_steps, ranks=1, device="cpu")[0]
    assert ledger == profiler


def test_views_and_in_place_operations_are_no_new_bytes():
    with Ledger("cpu") as ledger:
        tensor = torch.zeros(1000)
        tensor.view(10, 100).t()
        tensor.add_(1)
        assert ledger.current == ledger.peak == 4000
        other = tensor + 1
        assert ledger.current == 8000
        del other
        assert (ledger.current, ledger.peak) == (4000, 8000)


def test_a_storage_resized_in_place_is_counted_anew():
    with Ledger("cpu") as ledger:
        tensor = torch.zeros(1000)
        tensor.resize_(2000)
        assert ledger.current == 8000
        del tensor
        assert ledger.current == 0


def test_a_storage_emptied_and_filled_again_is_for_the_same_as_before():
    """FSDP2 frees and takes gathered parameters so."""
    before = torch.UntypedStorage.resize_
    with Ledger("cpu") as outer, Ledger("cpu") as ledger:
        tensor = torch.zeros(1000)
        ledger.label("parameters", tensor)
        storage = tensor.untyped_storage()
        storage.resize_(0)
        assert (ledger.current, ledger.categories()["parameters"], outer.current) == (0, 0, 0)
        storage.resize_(8000)
        assert (ledger.current, ledger.categories()["parameters"], outer.current, ledger.peak) == (
            8000,
            8000,
            8000,
            8000,
        )
        storage.resize_(0)
        del tensor, storage
        assert ledger.current == 0 and not ledger._known
    assert torch.UntypedStorage.resize_ is before


def two_steps(ledger, model, optimizer):
    """Of torch alone, with a snapshot after each pass and after the optimizer's step."""
    for _ in range(2):
        ledger.mark("forward")
        loss = model(*corpus.batch(0, 2, 64))
        ledger.snapshot("after forward")
        loss.backward()
        del loss
        ledger.snapshot("after backward")
        optimizer.step()
        optimizer.zero_grad()
        ledger.snapshot("after step")


def step_of_plain_torch():
    with Ledger("cpu") as ledger:
        model = models.GPT()
        optimizer = torch.optim.AdamW(model.parameters())
        ledger.watch(model, optimizer)
        two_steps(ledger, model, optimizer)
    return ledger.snapshots, ledger.history()


@pytest.mark.ranks
def test_categories_sum_to_the_total_at_every_event():
    snapshots, history = launch(step_of_plain_torch, ranks=1, device="cpu")[0]
    for snapshot in snapshots:
        assert set(snapshot.categories) == set(CATEGORIES)
        assert snapshot.peak >= snapshot.total
        assert snapshot.settled
    assert history.total[0] == 0
    assert max(history.total) == max(snapshot.peak for snapshot in snapshots)
    last = {category: values[-1] for category, values in history.totals.items()}
    assert last == snapshots[-1].categories


def steps_of_fsdp(mesh, reshard):
    """Two steps of torch's fully_shard in fp32: the snapshots of the second, and the model's elements."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.distributed.init_process_group("gloo")
    chosen = {
        "mesh": init_device_mesh("cpu", mesh, mesh_dim_names=("replicate", "shard")[-len(mesh) :]),
        "reshard_after_forward": reshard,
    }
    with Ledger("cpu") as ledger:
        model = models.GPT()
        elements = sum(parameter.numel() for parameter in model.parameters())
        for part in (*model.blocks, model):
            fully_shard(part, **chosen)
        optimizer = torch.optim.AdamW(model.parameters())
        ledger.watch(model, optimizer)
        two_steps(ledger, model, optimizer)
    return ledger.snapshots[-3:], elements, len(list(model.parameters()))


@pytest.mark.ranks
@pytest.mark.parametrize(
    "mesh, reshard", [((2,), True), ((2,), False), ((2, 1), True), ((1, 2), True)], ids=str
)
def test_torchs_fully_sharded_parameters_count_as_what_each_rank_holds(mesh, reshard):
    for snapshots, elements, tensors in launch(
        steps_of_fsdp, ranks=2, arguments={"mesh": mesh, "reshard": reshard}, device="cpu"
    ):
        shard = elements // mesh[-1]
        forward, backward, step = (snapshot.categories for snapshot in snapshots)
        states = {
            "parameters": 4 * shard,
            "gradients": 0,
            "optimizer states": 8 * shard + theory.model_states.COUNTER * tensors,
            "master weights": 0,
        }
        assert {name: step[name] for name in states} == states
        assert {name: backward[name] for name in states} == states | {"gradients": 4 * shard}
        assert forward["parameters"] - 4 * shard >= (0 if reshard else 4 * elements)


@pytest.mark.ranks
def test_plain_torch_by_category():
    snapshots, _ = launch(step_of_plain_torch, ranks=1, device="cpu")[0]
    parameters = theory.gpt_parameters(models.TINY)
    forward, backward, step = snapshots[-3:]
    assert forward["activations"] == theory.gpt_activation_bytes(models.TINY, 2, 64, 4)
    assert forward["inputs"] == 2 * 8 * 2 * 64
    assert backward["gradients"] == backward["parameters"] == 4 * parameters
    assert step["gradients"] == step["activations"] == 0
    assert step["optimizer states"] == 8 * parameters + 4 * len(list(models.GPT().parameters()))


def losses(counted):
    import deepspeed

    config = configuration(2, bf16=False, micro_batch=2)
    ledger = Ledger("cpu")
    if counted:
        ledger.__enter__()
    model = models.build(models.GPT)
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    if counted:
        ledger.watch(engine)
    found = []
    for step in range(4):
        loss = engine(*corpus.batch(step, 2, 64))
        engine.backward(loss)
        engine.step()
        found.append(loss.item())
    if counted:
        ledger.__exit__(None, None, None)
    return found


@pytest.mark.ranks
def test_counting_changes_no_loss():
    with_ledger, without = (
        launch(losses, ranks=2, arguments={"counted": counted}, device="cpu") for counted in (True, False)
    )
    assert list(with_ledger) == list(without)


def test_unknown_names_are_refused():
    with Ledger("cpu") as ledger:
        ledger.mark("here")
        with pytest.raises(ValueError, match="there are here"):
            ledger.history(start="nowhere")
        with pytest.raises(ValueError, match="category"):
            ledger.label("weights", torch.zeros(1))


def test_hooks_are_removed():
    model = models.GPT()
    with Ledger("cpu") as ledger:
        ledger.watch(model)
    assert all(not part._forward_hooks and not part._forward_pre_hooks for part in model.modules())


def test_what_was_watched_is_freed_with_its_ledger():
    with Ledger("cpu") as ledger:
        model = torch.nn.Linear(4, 4)
        ledger.watch(model)
        model(torch.ones(2, 4)).sum().backward()
        ledger.snapshot("after backward")
    alive = weakref.ref(model)
    del model, ledger
    gc.collect()
    assert alive() is None


def test_history_between_marks_starts_at_the_first():
    with Ledger("cpu") as ledger:
        kept = torch.zeros(100)
        ledger.mark("start")
        torch.zeros(50)
        ledger.mark("end")
        other = torch.zeros(10)  # after the end
    history = ledger.history("start", "end")
    assert history.total == [400, 600, 400]
    assert history.marks == [(0, "start"), (2, "end")]
    del kept, other


def test_a_limit_raises_where_a_gpu_of_that_size_would_and_says_what_held_the_memory():
    model = torch.nn.Sequential(torch.nn.Linear(100, 100, bias=False), torch.nn.ReLU())
    x = torch.ones(50, 100)
    with Ledger(
        "cpu", limit=75_000
    ) as ledger:  # 40,000 of weights and 20,000 of inputs; 20,000 of activations are too many
        ledger.watch(model)
        with pytest.raises(OutOfMemory) as refused:
            model(x)
        assert ledger.current == 60_000  # what was refused is gone
    error = refused.value
    assert (error.asked, error.limit, error.held["parameters"], error.held["inputs"]) == (
        20_000,
        75_000,
        40_000,
        20_000,
    )
    assert str(error) == (
        "no room for 20,000 bytes more, the result of aten.mm in 0: "
        "this rank may hold 75,000 and holds 60,000 (40,000 of parameters; 20,000 of inputs)"
    )


def test_what_has_just_room_passes_and_a_smaller_try_after_a_refusal_too():
    with Ledger("cpu", limit=8000) as ledger:
        kept = torch.zeros(1000)
        with pytest.raises(OutOfMemory, match="temporaries, or tensors that nobody has named"):
            torch.zeros(1001)
        more = torch.zeros(1000)
        assert ledger.current == 4 * (kept.numel() + more.numel()) == 8000


def test_activations_are_named_in_words_and_a_refusal_in_the_backward_pass_comes_through():
    model = torch.nn.Sequential(*(torch.nn.Tanh() for _ in range(3)))
    x = torch.ones(1000, requires_grad=True)
    with Ledger(
        "cpu", limit=18_000
    ) as ledger:  # 4,000 of inputs, 12,000 of activations and the sum; then the first gradient
        ledger.watch(model)
        total = model(x).sum()
        with pytest.raises(
            OutOfMemory, match="12,000 of activations, which the forward pass keeps for the backward pass"
        ):
            total.backward()


def test_an_out_of_memory_is_torchs_too_and_is_pickled_with_its_words():
    error = OutOfMemory(8, {"parameters": 4}, 10, "aten.mm")
    assert isinstance(error, MemoryError) and isinstance(error, torch.OutOfMemoryError)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_must_be_positive(limit):
    with pytest.raises(ValueError, match="positive number of bytes"):
        Ledger("cpu", limit=limit)


def steps_with_a_second_copy(partition):
    """A step of ZeRO-3 in bf16 and the next forward and backward pass: parameters' bytes at three moments,
    and each parameter's elements."""
    import deepspeed

    config = configuration(
        3,
        stage3_param_persistence_threshold=0,
        stage3_max_live_parameters=0,
        zero_hpz_partition_size=partition,
    )
    with Ledger("cpu") as ledger:
        model = models.build(models.GPT, config=config)
        engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
        ledger.watch(engine)
        held = []
        for step in range(2):
            engine.backward(engine(*corpus.batch(step, 1, 32)))
            held.append(ledger.snapshot("after backward"))
            engine.step()
            held.append(ledger.snapshot("after step"))
    return held[2:], [parameter.ds_numel for parameter in model.parameters()]


@pytest.mark.ranks
def test_the_second_copy_of_hpz_is_parameters_until_the_step():
    for held, elements in launch(steps_with_a_second_copy, ranks=4, arguments={"partition": 2}, device="cpu"):
        own, second = (sum(2 * -(-count // ranks) for count in elements) for ranks in (4, 2))
        assert [snapshot["parameters"] for snapshot in held] == [own + second, own]
        assert held[0]["activations"] == held[1]["activations"] == 0


def test_sparse_gradients_count_as_their_indices_and_values():
    model = torch.nn.Embedding(1000, 8, sparse=True)
    with Ledger("cpu") as ledger:
        ledger.watch(model, torch.optim.SGD(model.parameters()))
        model(torch.tensor([1, 2, 3])).sum().backward()
        assert ledger.categories()["gradients"] == 3 * 8 + 3 * 8 * 4  # of an index, and of a row in fp32


COMPRESSED = {
    "to_sparse_csr": ("crow_indices", "col_indices", "values"),
    "to_sparse_csc": ("ccol_indices", "row_indices", "values"),
    "to_sparse_bsr": ("crow_indices", "col_indices", "values"),
    "to_sparse_bsc": ("ccol_indices", "row_indices", "values"),
}


@pytest.mark.parametrize("name, parts", COMPRESSED.items())
def test_a_sparse_tensor_counts_as_what_it_consists_of(name, parts):
    dense = torch.eye(64)
    with Ledger("cpu") as ledger:
        sparse = getattr(dense, name)(*([(2, 2)] if "_bs" in name else []))
        expected = sum(getattr(sparse, part)().untyped_storage().nbytes() for part in parts)
        assert ledger.current == expected > 64 * 4
        ledger.label("gradients", sparse)
        assert ledger.categories()["gradients"] == expected
        del sparse
        assert ledger.current == 0


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_a_nested_tensor_counts_its_numbers_and_its_sizes(layout):
    with Ledger("cpu") as ledger:
        nested = torch.nested.nested_tensor([[1.0, 2.0], [3.0, 4.0, 5.0]], layout=layout)
        assert ledger.current >= 5 * 4 + 2 * 8
        del nested
        assert ledger.current == 0


def test_a_quantized_tensor_counts_its_scales():
    dense, scales, zeros = torch.eye(64), torch.ones(64), torch.zeros(64)
    with Ledger("cpu") as ledger:
        quantized = torch.quantize_per_channel(dense, scales, zeros, 0, torch.qint8)
        scales = quantized.q_per_channel_scales().untyped_storage().nbytes()
        assert ledger.current == 64 * 64 + 2 * scales


def test_what_torch_hides_is_named():
    dense = torch.eye(64)
    with Ledger("cpu") as ledger, pytest.warns(UserWarning, match="tensors of torch._mkldnn are not counted"):
        hidden = dense.to_mkldnn()
        assert ledger.current == 0 and hidden.is_mkldnn


def test_saved_sparse_tensors_count():
    class Product(torch.nn.Module):
        def forward(self, sparse, dense):
            return torch.sparse.mm(sparse * 2, dense)

    model = Product()
    with SavedActivations(model) as saved:
        model(torch.eye(4).to_sparse(), torch.ones(4, 4, requires_grad=True))
    assert saved.total == 4 * (2 * 8 + 4)


def test_a_snapshots_barrier_is_no_message_of_the_program():
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        with Traffic() as traffic, Ledger("cpu") as ledger:
            ledger.snapshot("now")
        assert traffic.logged == {}
    finally:
        torch.distributed.destroy_process_group()
