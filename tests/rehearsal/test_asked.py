"""A program that asks for a number which a rehearsal does not know is told so, at its own lines and once."""

import pytest
import torch
from helpers import models, rehearse
from helpers.tools.rehearsal.asked import SCALING, Place, told
from tests.support import configuration

pytestmark = pytest.mark.ranks


def asking(times):
    loss = torch.ones(4).sum()
    for _ in range(times):
        if loss > 2:
            raise ValueError("a rehearsal is not to know that 4 is more than 2")
    said = [loss.item(), f"{loss:.3f}", torch.ones(3).tolist()]
    if torch.equal(torch.zeros(2), torch.ones(2)):
        said.append("alike")
    if torch.isfinite(loss).all():
        said.append("finite")
    return said


ASKED = [
    "(loss > 2 → False, 3 times)",
    "(loss.item() → 1.0)",
    '(f"{loss:.3f}" → 1.0)',
    "(torch.ones(3).tolist() → 1.0, 3 times)",
]
ASKED += ["(torch.equal(torch.zeros(2), torch.ones(2)) → True)", "(torch.isfinite(loss).all() → True)"]


def test_each_place_is_told_with_its_words_and_the_answer():
    places = []
    assert rehearse(asking, 4, arguments={"times": 3}, asked=places) == [
        1.0,
        "1.000",
        [1.0] * 3,
        "alike",
        "finite",
    ]
    assert [str(place).partition("in asking ")[2] for place in places] == list(map(shortened, ASKED))
    first = asking.__code__.co_firstlineno
    assert [place.line - first for place in places] == [3, 5, 5, 5, 6, 8]


def shortened(words):
    """As a `Place` says long ones."""
    inside, arrow, answer = words[1:].partition(" → ")
    return f"({inside if len(inside) <= 40 else inside[:37] + '...'}{arrow}{answer}"


def test_it_is_said_once_at_the_end(capsys):
    rehearse(asking, 4, arguments={"times": 1})
    first, *lines, last = capsys.readouterr().out.splitlines()
    assert first == "6 places asked for a number that a rehearsal does not know:" and last == "  and 1 more"
    assert len(lines) == 5 and lines[0].endswith("in asking (loss > 2 → False)")


def asking_under_a_ledger():
    from helpers import Ledger

    with Ledger("cpu"):
        return torch.ones(4).sum().item()


def test_a_program_that_asks_under_a_ledger_is_told_too():
    places = []
    assert rehearse(asking_under_a_ledger, 4, asked=places) == 1.0
    assert [str(place).partition("in ")[2] for place in places] == [
        "asking_under_a_ledger (torch.ones(4).sum().item() → 1.0)"
    ]


def known():
    drawn = torch.randint(100, (4,), generator=torch.Generator().manual_seed(3)).tolist()
    order = list(torch.utils.data.RandomSampler(range(5), generator=torch.Generator().manual_seed(3)))
    return torch.arange(3).tolist(), drawn, order


def test_what_a_program_said_or_drew_itself_is_known(capsys):
    found = rehearse(known, 4)
    assert found == known() and sorted(found[2]) == [0, 1, 2, 3, 4]
    assert capsys.readouterr().out == ""


def trained(fp16):
    import deepspeed
    from helpers import corpus

    deepspeed.init_distributed()
    skipped = []
    for stage in (0, 1, 3):
        config = configuration(
            stage, bf16=not fp16, extra={"gradient_clipping": 1.0, "fp16": {"enabled": fp16}}
        )
        model = models.build(models.GPT, models.GPTSize(layers=1), config=config)
        engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
        for _ in range(2):
            engine.backward(engine(*corpus.batch(0, 4, 64, 0, 4, engine.device)))
            engine.step()
        skipped.append(engine.skipped_steps)
    return skipped


@pytest.mark.parametrize("fp16", [False, True])
def test_of_deepspeeds_own_questions_loss_scaling_alone_is_told(fp16):
    places = []
    assert rehearse(trained, 4, arguments={"fp16": fp16}, device="cuda", asked=places) == [0, 0, 0]
    assert list(map(str, places)) == ([f"{SCALING} (overflow → no, 6 times)"] if fp16 else [])


def test_a_place_without_its_text():
    place = Place("/tmp/ipykernel_12/345.py", 7, "train", None, 1.0)
    assert (
        told([place])
        == "1 place asked for a number that a rehearsal does not know:\n  cell, line 7, in train (a "
        "number → 1.0)"
    )
    assert told([]) == ""
