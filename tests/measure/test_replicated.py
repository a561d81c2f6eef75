"""What lesson 04 measures beside the learner's functions."""

import pytest
import torch
from helpers import job, launch, recorded, replicated
from helpers.course.exercises import data_parallelism as lesson_04
from helpers.course.job.more_gpus import NVLINK, gradient_bytes, layers

CONFIG = {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 4, "gradient_clipping": 0.0}


def by_deepspeed():
    import deepspeed

    watch = replicated.Watch()
    adam = torch.optim.AdamW(watch.model.parameters(), lr=0.0)
    engine, *_ = deepspeed.initialize(model=watch.model, optimizer=adam, config=CONFIG)
    for parts in watch.steps(engine):
        for number, rows in enumerate(parts, 1):
            engine.backward(engine(*rows))
            if number == len(parts):
                watch.ended()
            engine.step()
    return watch.report()


@pytest.mark.ranks
def test_deepspeed_s_stage_0_begins_nothing_early():
    for report in launch(by_deepspeed, ranks=2, device="cpu"):
        assert report["early"] == 0 and report["messages"] == 1


@pytest.mark.ranks
def test_what_was_not_sent_is_not_called_sent(monkeypatch):
    """Where sockets are not counted, no prediction stands in the place of a measurement."""
    monkeypatch.setattr(replicated, "launch", lambda *_, **__: [report])
    monkeypatch.setattr(replicated, "alone", lambda *_: torch.ones(2))
    report = {"gradient": torch.ones(2).numpy(), "sent": None, "messages": 1, "early": 0}
    report |= {"held": 32, "peak": 40}
    assert replicated.beside_each_other({"a": None})[0]["sent, in gradients"] == "not counted"


def test_the_job_s_layers_have_all_its_gradients():
    assert sum(size for _, size in layers()) == pytest.approx(gradient_bytes())


@pytest.mark.parametrize("ranks, bandwidth", [(8, NVLINK), (64, 25e9), (64, 12.5e9)])
def test_what_is_exposed_lies_in_the_range_of_the_planner(ranks, bandwidth):
    one = job.last_pass(ranks, bandwidth)
    least, most = lesson_04.exposed.solution(one.work, one.message)
    assert least <= one.exposed <= most
    ends = {
        way: job.replicated_step(ranks, bandwidth, way)["exposed"] for way in ("at the end", "in buckets")
    }
    assert ends["at the end"] == pytest.approx(one.message) and ends["in buckets"] == one.exposed


def test_recorded_costs_over_sockets_lie_in_the_range_and_the_table_has_them():
    exposed = lesson_04.exposed.solution
    (one,) = [one for one in recorded.costs_of_messages("DDP") if one.tokens == 16384]
    least, most = exposed(one.backward, one.message)
    assert 0.99 * least <= one.cost <= most
    rows = {(row["link"], row["tokens"]): row for row in recorded.costs(exposed)}
    assert rows["sockets", "16,384"]["cost by DDP"] == f"{1e3 * one.cost:,.1f}"
    within = {case for case, row in rows.items() if row["DDP in the range"] == "True"}
    held = {("NVLink", "1,024"), ("NVLink", "2,048"), ("NVLink", "4,096"), ("sockets", "16,384")}
    assert len(rows) == 8 and within == held


def test_the_message_joined_and_split_costs_six_times_its_bytes_of_memory():
    """What the lesson says of the reducer at the end over NVLink: 22 GB at 3 TB/s."""
    for one in recorded.costs_of_messages("at the end"):
        if one.link == "NVLink" and one.tokens >= 1024:
            (run,) = recorded.runs("overlap", how="at the end", link="NVLink")
            copies = 6 * 2 * run.parameters / 3e12
            assert one.cost == pytest.approx(one.message + copies, rel=0.1)


def test_a_learner_s_script_is_kept_and_what_was_changed_there_stays(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("helpers.paths.WORK", tmp_path)
    monkeypatch.chdir(tmp_path)
    solved = lesson_04.stubs.solutions
    parts = solved.same_start, solved.start, solved.collect, solved.replicas, solved.one_step
    text = lesson_04.script(main, *parts)
    kept = (tmp_path / "train.py").read_text()
    assert "def replicas(model, size):" in kept and "def replicas(model, size):" in text
    assert "`main` is in train.py" in capsys.readouterr().out
    (tmp_path / "train.py").write_text(kept.replace("replicas(model, 8)", "replicas(model, 9)"))
    lesson_04.script(main, *parts)
    assert "replicas(model, 9)" in (tmp_path / "train.py").read_text()


def main():
    begin()  # noqa: F821  both stand in the script
    model = torch.nn.Linear(2, 1)
    replicas(model, 8)  # noqa: F821
    end(model, [0])  # noqa: F821
