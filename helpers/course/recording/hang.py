"""Record a real hang under NCCL, on two GPUs: `python -m helpers.course.recording.hang FOLDER`.

Two ranks train for a while; then rank 1 leaves an all-reduce out, or enters two groups in the other order.
Kept are what both ranks wrote, the Python stacks that they gave on request, what each GPU's driver said
meanwhile, beside a healthy run, what the flight recorder wrote down, and how torch's own reader reads that.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TIMEOUT = 20  # seconds after which NCCL's watchdog gives up
HUNG_AT, STEPS = 60, 2000  # the step in which it hangs; the steps of a healthy run, which is ended
EVERY, LONGEST, STACKS_AFTER = (
    0.5,
    75.0,
    8.0,
)  # seconds: between two looks, of a run, from the hang to the stacks
QUERY = "index,utilization.gpu,power.draw,clocks.sm,memory.used"
FIELDS = ("record_id", "collective_seq_id", "profiling_name", "input_sizes", "state")
DOES = {  # what rank 1 does in a variant
    "healthy": None,
    "gone": "sleeps instead of the first all-reduce",
    "next": "leaves the first all-reduce out",
    "crossed": "enters the second all-reduce, of another group, before the first",
}


def rank(variant: str) -> None:
    """What a rank does."""
    import datetime
    import faulthandler

    import torch
    import torch.distributed as dist

    number = int(os.environ["RANK"])
    faulthandler.register(signal.SIGUSR1, all_threads=False)
    torch.cuda.set_device(number)
    dist.init_process_group(
        "nccl",
        timeout=datetime.timedelta(seconds=TIMEOUT),
        device_id=torch.device("cuda", number),
    )
    gradients, more = torch.ones(2**24, device="cuda"), torch.ones(2**20, device="cuda")
    square = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    other = dist.new_group() if variant == "crossed" else None  # the same two ranks

    def train_step(step):
        for _ in range(40):
            square @ square
        if variant != "healthy" and step == HUNG_AT and number == 1:
            print(f"rank 1 {DOES[variant]} in step {step}", flush=True)
            if variant == "gone":
                time.sleep(10 * TIMEOUT)
            if variant == "crossed":
                dist.all_reduce(more, group=other)
                dist.all_reduce(gradients)
                return gradients[0].item()
        else:
            dist.all_reduce(gradients)
        dist.all_reduce(more, group=other)
        return gradients[0].item()

    for step in range(STEPS):
        train_step(step)
        if step % 20 == 0 or step in (HUNG_AT - 1, HUNG_AT):
            print(f"rank {number}: step {step} done", flush=True)


def recorded(variant: str, folder: Path, port: int) -> dict:
    """One run.

    Returns:
        {"seconds": until it ended, "exits": statuses, None where a rank was ended here, "hung": seconds at
        which rank 1 left the all-reduce out, "output", "stacks": [lines of each rank], "gpus": [[seconds, and
        for each GPU its index, utilisation in %, W, MHz, MiB]], "flight recorder": [each rank's last entries,
        with the frames of Python], "reading": lines of torch's reader}.
    """
    files = [folder / f"{variant}-{number}.txt" for number in range(2)]
    began, processes = time.monotonic(), []
    for number, file in enumerate(files):
        environment = os.environ | {
            "RANK": str(number),
            "LOCAL_RANK": str(number),
            "WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "TORCH_FR_BUFFER_SIZE": "2000",
            "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
            "TORCH_FR_DUMP_TEMP_FILE": str(folder / f"{variant}_"),
        }
        command = [sys.executable, "-m", __spec__.name, "--rank", variant]
        with file.open("w") as output:
            processes.append(subprocess.Popen(command, env=environment, stdout=output, stderr=output))
    gpus, hung, stacks = [], None, None
    while any(process.poll() is None for process in processes):
        now = time.monotonic() - began
        gpus.append([round(now, 2), *smi()])
        if hung is None and f"rank 1 {DOES[variant]}" in files[1].read_text():
            hung = round(now, 2)
        if hung is not None and stacks is None and now - hung > STACKS_AFTER:
            stacks = [stack(process, file) for process, file in zip(processes, files)]
        if now > (LONGEST / 3 if variant == "healthy" else LONGEST):
            break
        time.sleep(EVERY)
    ended = round(time.monotonic() - began, 1)
    exits = [process.poll() for process in processes]
    for process in processes:
        process.kill()
        process.wait()
    return {
        "seconds": ended,
        "exits": exits,
        "hung": hung,
        "output": [plain(file.read_text(), folder) for file in files],
        "stacks": stacks,
        "gpus": gpus,
        "flight recorder": [entries(folder / f"{variant}_{number}") for number in range(2)],
        "reading": reading(folder, variant),
    }


def smi() -> list[float]:
    """What `QUERY` asks, of both GPUs, in a row."""
    command = ["nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader,nounits"]
    answer = subprocess.run(command, capture_output=True, text=True).stdout
    return [float(value) for value in answer.replace("\n", ",").split(",") if value.strip()]


def stack(process: subprocess.Popen, file: Path) -> list[str]:
    """What a rank writes when it is asked where it stands."""
    before = len(file.read_text())
    process.send_signal(signal.SIGUSR1)
    time.sleep(1)
    return plain(file.read_text()[before:], file.parent)


def plain(text: str, folder: Path) -> list[str]:
    """Lines without folders, names of hosts, addresses and numbers of processes."""
    text = text.replace(str(folder), "folder")
    text = re.sub(r'(?<=File ")[^"]*/', "", text)
    text = re.sub(r"(?<= from )/\S*/|(?<= at )/\S*/", "", text)
    text = re.sub(r"0x[0-9a-f]{6,}", "0x...", text)
    return text.splitlines()


def entries(dump: Path) -> list[dict]:
    """The last four entries of a flight recorder's file, [] where it left none."""
    if not dump.exists():
        return []
    last = pickle.loads(dump.read_bytes())["entries"][-4:]
    return [{name: entry[name] for name in FIELDS} | {"frames": frames(entry)} for entry in last]


def frames(entry: dict) -> list[str]:
    """["file:line function"], the innermost first."""
    return [f"{Path(each['filename']).name}:{each['line']} {each['name']}" for each in entry["frames"]]


def reading(folder: Path, variant: str) -> list[str]:
    """What `torchfrtrace` says of the files."""
    command = [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", str(folder)]
    done = subprocess.run([*command, "-p", f"{variant}_"], capture_output=True, text=True)
    return plain(done.stdout + done.stderr, folder)


def main(target: str) -> None:
    from helpers.course.recording.record import commit, machine
    from helpers.tools.launcher.jobs import launch

    about = {"gpus": 2, **launch(machine, ranks=1)[0]}
    content = {
        "experiment": "hang",
        "on": about,
        "commit": commit(),
        "command": "python -m helpers.course.recording.hang FOLDER",
        "predicted": "gone: rank 0's GPU at 100 %, and at a fifth of a healthy run's power; rank 1's at 0 %; "
        "crossed: both at 100 %, and at a fifth",
        "runs": {},
    }
    path = Path(target) / "hang" / f"2-{re.sub('[^A-Za-z0-9.]+', '-', about['device'])}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    for at, variant in enumerate(DOES):
        with tempfile.TemporaryDirectory() as scratch:
            content["runs"][variant] = recorded(variant, Path(scratch), 29500 + at)
        path.write_text(json.dumps(content, separators=(",", ":")) + "\n")
        print(path, variant, flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "--rank":
        rank(sys.argv[2])
    else:
        main(sys.argv[1])
