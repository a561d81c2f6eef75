"""What a rank returns from an accelerator arrives as it was, on the CPU.  Here every tensor counts as one on
an accelerator."""

import io
import pickle

import pytest
import torch
from helpers.tools.launcher import rank


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = torch.nn.Embedding(4, 2), torch.nn.Linear(2, 4, bias=False)
        self.head.weight = self.embedding.weight
        self.frozen = torch.nn.Parameter(torch.ones(3), requires_grad=False)
        self.frozen.note = "of mine"
        self.register_buffer("mask", torch.arange(3))


@pytest.fixture
def returned(monkeypatch):
    monkeypatch.setattr(rank, "on_accelerator", lambda tensor: True)

    def there_and_back(value):
        file = io.BytesIO()
        rank.ReportPickler(file, pickle.HIGHEST_PROTOCOL).dump(value)
        return pickle.loads(file.getvalue())

    return there_and_back


def test_a_module_keeps_its_parameters(returned):
    sent = Model()
    model = returned(sent)
    assert {name: parameter.requires_grad for name, parameter in model.named_parameters()} == {
        "embedding.weight": True,
        "frozen": False,
    }
    assert model.head.weight is model.embedding.weight and type(model.frozen) is torch.nn.Parameter
    assert model.frozen.note == "of mine"
    assert type(model.mask) is torch.Tensor and list(model.state_dict()) == list(sent.state_dict())
    assert all(torch.equal(value, sent.state_dict()[name]) for name, value in model.state_dict().items())


def test_a_tensor_keeps_that_it_requires_a_gradient(returned):
    for requires_grad in (True, False):
        tensor = returned(torch.ones(2, requires_grad=requires_grad))
        assert tensor.requires_grad == requires_grad and tensor.is_leaf


def test_where_a_tensor_must_be_copied():
    assert not rank.on_accelerator(torch.ones(1)) and not rank.on_accelerator(torch.ones(1, device="meta"))
