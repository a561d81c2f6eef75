"""Products of bf16 matrices on a CPU, which `helpers.course.models` computes in fp32."""

import pytest
import torch
from helpers.course.models.products import PRODUCTS
from helpers.tools.measure.ledger import Ledger

GIVEN = {  # shapes of what is added, and of the factors
    "mm": [(96, 512), (512, 80)],
    "addmm": [(80,), (96, 512), (512, 80)],
    "bmm": [(3, 96, 128), (3, 128, 80)],
    "baddbmm": [(3, 96, 80), (3, 96, 128), (3, 128, 80)],
}


@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("numbers", [{}, {"beta": 0.5, "alpha": 3}], ids=["plain", "scaled"])
def test_are_those_of_fp32_rounded_once(name, numbers):
    torch.manual_seed(0)
    product, numbers = getattr(torch, name), numbers if "add" in name else {}
    given = [torch.randn(shape).bfloat16() for shape in GIVEN[name]]
    right = product(*(one.float() for one in given), **numbers)
    found = product(*given, **numbers)
    assert found.dtype == torch.bfloat16 and found.equal(right.bfloat16())


def test_gradients_have_the_weights_dtype_and_are_rounded_once():
    torch.manual_seed(0)
    layer, rows = torch.nn.Linear(64, 80).bfloat16(), torch.randn(512, 64).bfloat16()
    layer(rows).sum().backward()
    right = torch.ones(80, 512) @ rows.float()
    assert layer.weight.grad.equal(right.bfloat16())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_ledger_sees_no_more_than_the_result(dtype):
    rows, columns = torch.ones(40, 50, dtype=dtype), torch.ones(50, 60, dtype=dtype)
    with Ledger("cpu") as ledger:
        product = rows @ columns
        assert ledger.current == ledger.peak == product.nbytes == 40 * 60 * dtype.itemsize
