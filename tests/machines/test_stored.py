"""A job on machines of its own, and what stands in for it where they are not allowed."""

import pytest
from helpers.machines import stored
from helpers.machines.machines import problem


def test_where_machines_are_not_allowed_the_stored_run_is_shown_with_the_reason(monkeypatch, capsys):
    monkeypatch.setattr(stored, "reason", lambda: "this system does not allow them")
    found = stored.on_machines("13 pipe across", None, ranks=8)
    assert len(found) == 8 and found[0]["sent"] > 0
    assert capsys.readouterr().out == "not run here, but stored: this system does not allow them\n"
    with pytest.raises(KeyError, match="nowhere"):
        stored.on_machines("nowhere", None, ranks=8)


def counted(machines, name):
    import deepspeed
    import torch

    deepspeed.init_distributed()
    torch.distributed.all_reduce(torch.ones(1))
    with machines.counting() as cable:
        torch.distributed.all_reduce(torch.ones(100_000))
    return {"name": name, "sent": [card.sent for card in cable], "place": (1, 2)}


@pytest.mark.ranks
def test_a_run_returns_what_a_stored_one_would_and_is_stored_when_asked(monkeypatch, tmp_path):
    if refused := problem():
        pytest.skip(refused)
    monkeypatch.setattr(stored, "FILE", tmp_path / "stored.json")
    stored.on_machines("not kept", counted, 2, {"name": "a"})
    assert stored.stored() == {}
    monkeypatch.setenv(stored.STORE, "1")
    found = stored.on_machines("kept", counted, 2, {"name": "a"})
    assert found == stored.stored()["kept"] and found[0]["place"] == [1, 2]
    assert all(sent == pytest.approx(400_000, rel=0.02) for sent in found[0]["sent"])


def test_what_the_lesson_needs_is_stored():
    names = {"13 pipe across": 8, "13 data across": 8, "13 model across": 8, "13 ZeRO-3": 4, "13 hpZ": 4}
    assert {name: len(reports) for name, reports in stored.stored().items() if name in names} == names
