"""A small training on this process alone, for a history."""

import torch
from helpers import Ledger
from helpers.course.play.histories import held_by_name


def history():
    """(two steps of two layers as a ledger saw them, {size in words: bytes at each moment})."""
    torch.manual_seed(0)
    with Ledger(device="cpu") as ledger:
        model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 64))
        optimizer = torch.optim.AdamW(model.parameters())
        ledger.watch(model, optimizer)
        for number in ("first", "second"):
            ledger.mark(f"{number} forward")
            loss = model(torch.ones(32, 64)).square().mean()
            ledger.mark(f"{number} backward")
            loss.backward()
            ledger.mark(f"{number} step")
            optimizer.step()
            optimizer.zero_grad()
            del loss
        return ledger.history(), held_by_name(ledger, name_of)


def name_of(storage):
    """The weights of both layers are alike in size."""
    sizes = {64 * 128 * 4: "like a weight", 128 * 4: "like the first bias", 64 * 4: "like the second bias"}
    return sizes.get(storage.bytes)
