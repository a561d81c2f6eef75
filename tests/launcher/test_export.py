"""An exported function, run by the real `deepspeed` command, where the course cannot be imported from
elsewhere."""

import atexit
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import cloudpickle
import torch
from helpers import corpus, export, launch, models
from helpers.tools.launcher.ports import held_port
from tests.launcher.support import REPOSITORY

cloudpickle.register_pickle_by_value(sys.modules[__name__])

SIZE, STEPS = models.GPTSize(width=32), 2


class Model(models.GPT):
    def forward(self, ids, targets=None):
        return super().forward(ids, targets)


class Aborts:
    """As a thread of gloo does that is not done when Python's last part comes, on a busy machine."""

    def __del__(self):
        os.abort()


def train(rate, ended=""):
    import deepspeed
    import helpers

    torch.manual_seed(0)
    model = Model(SIZE)
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "optimizer": {"type": "AdamW", "params": {"lr": rate, "torch_adam": True}},
    }
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    for step in range(STEPS):
        loss = engine(*corpus.batch(step, 4, 32, engine.global_rank, engine.world_size))
        engine.backward(loss)
        engine.step()
    torch.distributed.all_reduce(loss)
    torch.at_the_end = Aborts()
    if ended:
        atexit.register(Path(ended, f"atexit-{engine.global_rank}").touch)
        threading.Timer(0.5, Path(ended, f"thread-{engine.global_rank}").touch).start()
    return json.dumps(
        {"loss": round(loss.item(), 5), "ranks": engine.world_size, "helpers": helpers.__file__}
    )


def test_the_script_of_a_function_does_under_the_deepspeed_command_what_the_function_does_in_launch(
    tmp_path, monkeypatch
):
    here = json.loads(launch(train, 2, {"rate": 1e-3}, device="cpu")[0])
    for one in (Model, Aborts):
        monkeypatch.setattr(one, "__module__", "__main__")  # as in a notebook
    folder = tmp_path / "exported"
    assert (
        export(
            train,
            folder,
            {"rate": 1e-3, "ended": str(tmp_path)},
            hosts=["localhost"],
            interface="lo",
            gpus=False,
        )
        == folder / "train.py"
    )
    variables = dict(line.split("=") for line in (folder / ".deepspeed_env").read_text().split())
    surroundings = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | variables
    with held_port() as held:
        port = str(held.getsockname()[1])
        command = [
            sys.executable,
            "-m",
            "deepspeed.launcher.runner",
            "--num_accelerators",
            "2",
            "--master_port",
            port,
            "train.py",
        ]
        said = subprocess.run(
            command, cwd=folder, env=surroundings, capture_output=True, text=True, timeout=240
        )
    assert said.returncode == 0, said.stdout + said.stderr
    (line,) = [line for line in said.stdout.splitlines() if line.startswith("{")]  # rank 0's alone
    there = json.loads(line)
    assert here.pop("helpers") == str(REPOSITORY / "helpers" / "__init__.py")
    assert there.pop("helpers") == str(folder / "helpers" / "__init__.py")
    assert there == here and here["ranks"] == 2
    assert {path.name for path in tmp_path.glob("*-*")} == {"atexit-0", "atexit-1", "thread-0", "thread-1"}
