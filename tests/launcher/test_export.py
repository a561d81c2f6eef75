"""A function of a real notebook, exported and run by the real `deepspeed` command, where the course cannot be imported from elsewhere."""

import os
import subprocess
import sys

from tests.launcher.support import Notebook

CELLS = (
    "import torch\nfrom helpers import corpus, export, launch, models\nSIZE, STEPS = models.GPTSize(width=32), 2",
    "class Model(models.GPT):\n    def forward(self, ids, targets=None):\n        return super().forward(ids, targets)",
    """
def train(rate):
    import deepspeed, helpers, json, os
    model = Model(SIZE)
    config = {"train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "AdamW", "params": {"lr": rate, "torch_adam": True}}}
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    for step in range(STEPS):
        loss = engine(*corpus.batch(step, 4, 32, engine.global_rank, engine.world_size))
        engine.backward(loss)
        engine.step()
    torch.distributed.all_reduce(loss)
    return json.dumps({"loss": loss.item(), "ranks": engine.world_size, "from": helpers.__file__, "local": os.environ["LOCAL_RANK"]})
""",
    "print(launch(train, 2, {'rate': 1e-3}, device='cpu')[0])",
)


def printed(messages):
    return "".join(message["content"].get("text", "") for message in messages if message["msg_type"] == "stream").strip()


def test_the_script_of_a_cell_runs_through_the_deepspeed_command_as_the_cell_did(tmp_path):
    folder = tmp_path / "exported"
    with Notebook() as notebook:
        for cell in (*CELLS, f"export(train, {str(folder)!r}, {{'rate': 1e-3}}, hosts=['localhost'], interface='lo', gpus=False)"):
            reply, messages = notebook.run(f"import torch; torch.manual_seed(0)\n{cell}" if "launch(train" in cell else cell)
            assert reply["status"] == "ok", reply
            here = printed(messages) or here if "messages" in locals() and cell is not CELLS[0] else ""
    assert here
    variables = dict(line.split("=") for line in (folder / ".deepspeed_env").read_text().split())
    surroundings = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | variables
    command = [sys.executable, "-m", "deepspeed.launcher.runner", "--num_accelerators", "2", "--master_port", "0", "train.py"]
    said = subprocess.run(command, cwd=folder, env=surroundings, capture_output=True, text=True, timeout=240)
    print(said.stdout, said.stderr)
