"""A machine's own memory: what pinned tensors take there, and the verdict."""

import json

import pytest
from helpers.tools.forecast import forecasting
from helpers.tools.forecast.command_line import main
from helpers.tools.forecast.host import PROCESS, Host
from helpers.tools.measure.held import Storage
from helpers.tools.rehearsal.fitting import two_steps
from helpers.tools.rehearsal.pinning import GAPS, highest
from tests.rehearsal.test_command import LLAMA

OFFLOAD = {
    "bf16": {"enabled": True},
    "train_micro_batch_size_per_gpu": 1,
    "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}},
}


def test_what_is_not_pinned_takes_its_own_bytes():
    storages = [Storage(300, 1, 2, "other"), Storage(200, 3, None, "gradients")]
    assert highest(storages, set()) == {"other": 300}


def test_pinned_tensors_take_powers_of_two():
    assert highest([Storage(300, 1, None, "parameters")], {1}) == {"parameters": 300, GAPS: 212}
    assert highest([Storage(512, 1, None, "parameters")], {1}) == {"parameters": 512, GAPS: 0}


def test_what_was_pinned_stays_for_the_next_tensor_of_its_size():
    first, same, larger = (
        Storage(300, 1, 2, "other"),
        Storage(400, 3, 4, "other"),
        Storage(600, 5, 6, "other"),
    )
    assert highest([first, same], {1, 3}) == {"other": 300, GAPS: 212}, (
        "both had 512 bytes, one after the other"
    )
    assert highest([first, larger], {1, 5}) == {"other": 600, GAPS: 424 + 512}, (
        "512 bytes are kept beside 1,024"
    )
    assert sum(highest([first, larger], {5}).values()) == 1024, "what was not pinned is given back"


@pytest.mark.parametrize(
    "memory, fits, words",
    [(None, True, "needs"), (20 * 10**9, True, "suffices"), (7 * 10**9, False, "3 ranks")],
)
def test_a_machine_holds_all_of_its_ranks(memory, fits, words):
    host = Host(4, 300_000_000, memory)
    assert host.needed == 4 * (300_000_000 + PROCESS) and host.fits == fits and words in str(host)


@pytest.mark.ranks
def test_the_command_judges_the_machine_too(tmp_path, capsys):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / "zero.json").write_text(json.dumps(OFFLOAD))
    words = ["--model", str(tmp_path), "--deepspeed", str(tmp_path / "zero.json"), "--ranks", "4"]
    words += ["--sequence", "32", "--only-rank", "0", "--gpu-memory", "80GB", "--gpus-per-host", "2"]
    assert main([*words, "--host-memory", "1TB"]) == 0
    assert "the machine's own memory suffices" in capsys.readouterr().out
    without = [word for word in words if word not in ("--gpu-memory", "80GB")]
    assert main([*without, "--host-memory", "2GB", "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert answer["fits"] is False and answer["gpu"]["how"] is None, "no GPU was named"
    assert main([*words, "--host-memory", "2GB", "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    host, own = answer["host"], answer["ranks"]["0"]["host"]
    assert not answer["fits"] and answer["gpu"]["how"] == "fits" and host["ranks"] == 2
    assert host["tensors"] == sum(own.values()) and host["needed"] == 2 * (host["tensors"] + PROCESS)
    # Adam's two moments and the master weights of this rank's half, or quarter, lie on the host.
    partition = sum(answer["parameters"]["trained"].values()) / 4
    assert own["optimizer states"] == pytest.approx(8 * partition, rel=0.01)
    assert own["master weights"] == pytest.approx(4 * partition, rel=0.01)


def talkative(**arguments):
    print("a library warns")
    return two_steps(**arguments)


@pytest.mark.ranks
def test_json_stands_alone_on_stdout(tmp_path, capsys, monkeypatch):
    """Whatever a library says in a rehearsed rank, as DeepSpeed of fp16 on the host of an AMD processor."""
    monkeypatch.setattr(forecasting, "two_steps", talkative)
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / "zero.json").write_text(json.dumps(OFFLOAD))
    words = ["--model", str(tmp_path), "--deepspeed", str(tmp_path / "zero.json"), "--ranks", "2"]
    assert main([*words, "--sequence", "16", "--only-rank", "0", "--json"]) == 0
    said = capsys.readouterr()
    assert "a library warns" in said.err and json.loads(said.out)["question"]["dtype"] == "bf16"


def test_an_error_is_json_too(tmp_path, capsys):
    words = [
        "--model",
        str(tmp_path),
        "--deepspeed",
        "none.json",
        "--ranks",
        "4",
        "--sequence",
        "32",
        "--json",
    ]
    assert main(words) == 2
    said = capsys.readouterr()
    assert "cannot be read" in json.loads(said.out)["error"] and "cannot be rehearsed" in said.err
