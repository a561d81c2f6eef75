"""From the notebook to a cluster: a cell's function as a folder of files that `deepspeed` and Slurm start,
without this course."""

import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import FunctionType

from ..place import OURS
from ..whole import whole
from .script import Script, files_to_copy

IMPORTS = (
    *("import atexit", "import os", "import sys", "import threading", "import deepspeed", "import torch"),
    "from deepspeed.accelerator import get_accelerator",
)
WRITTEN = "Written by `export` of the course Distributed Training, Measured"
SCRIPT = '''"""{written}: the function {name} of a notebook, as a script for every rank.

`run.sh` starts it through the deepspeed command, `job.sbatch` through Slurm.
"""

{imports}


{parts}


if __name__ == "__main__":
    if get_accelerator().device_name() == "cpu":
        # gloo alone: DeepSpeed's own collectives for one machine would be compiled first
        deepspeed.ops.__compatible_ops__ = {{}}
    value = {name}({arguments})
    if os.environ.get("RANK", "0") == "0" and value is not None:
        print(value)
    if torch.distributed.is_initialized():
        if torch.distributed.get_backend() == "gloo":
            torch.distributed.barrier()  # no rank leaves while another still receives
            leave_early()
        torch.distributed.destroy_process_group()
'''
LEAVE = '''def leave_early():
    """As Python ends, but for its last part.

    There a thread of gloo that is not done with the last message yet aborts the rank."""
    for thread in threading.enumerate():
        if thread is not threading.main_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)'''
RUN = """#!/bin/sh
# {written}.
# From a machine that reaches all of `hostfile` through ssh without a password, and has pdsh.  The folder must
# be at the same place on all.  Of the variables that are set here, deepspeed passes few on (PYTHONPATH; with
# GPUs those of NCCL); it passes on those of .deepspeed_env.
cd "$(dirname "$0")"
exec deepspeed --hostfile hostfile --master_addr {first} --master_port {port} {script}

# Without ssh, on each machine with its own number instead of 0, in the order of `hostfile`, and with the
# variables of .deepspeed_env set:
#   deepspeed --hostfile hostfile --no_ssh --node_rank 0 --master_addr {first} --master_port {port} {script}
# On this machine alone, with 2 ranks:
#   deepspeed --num_gpus 2 {script}     (--num_accelerators 2 where there is no GPU)
"""
SBATCH = """#!/bin/bash
# {written}.  Submit it in its folder, which all nodes must see: sbatch job.sbatch
# When a node is lost Slurm starts this file again from its beginning, and the log goes on: {script} must look
# for its last checkpoint.
#SBATCH --job-name={name}
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node={slots}
#SBATCH --cpus-per-task={cpus}
{options}#SBATCH --time={time}
#SBATCH --output=job-%j.txt
#SBATCH --open-mode=append
#SBATCH --requeue
# The port follows from the job's number, so that two jobs on one node do not meet.
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
export WORLD_SIZE=$((SLURM_JOB_NUM_NODES * {slots})) LOCAL_WORLD_SIZE={slots} LOCAL_SIZE={slots}
{exports}
# A rank that fails ends the job: else the others wait for it until a timeout.  srun must be told the cores of
# a task once more.
srun --ntasks=$WORLD_SIZE --kill-on-bad-exit=1 --cpus-per-task={cpus} \\
    bash -c 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID exec python -u {script}'
status=$?
# A rank that failed, as after a long wait for a machine that is gone, starts it again too, if it has not been
# {restarts} times, lost nodes counted.
if [ $status -ne 0 ] && [ ${{SLURM_RESTART_COUNT:-0}} -lt {restarts} ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit $status
"""


def export(
    function: FunctionType,
    folder: str | Path,
    arguments: Mapping[str, object] | None = None,
    *,
    hosts: Iterable[str] = ("node0", "node1"),
    slots: int = 2,
    cpus: int = 1,
    interface: str | None = None,
    gpus: bool = True,
    time: str = "00:10:00",
    account: str | None = None,
    partition: str | None = None,
    port: int = 29500,
    restarts: int = 3,
) -> Path:
    """Write a function that `launch` runs as a script, and the files with which `deepspeed` and Slurm run it
    on several machines.

    The script holds the function's source and all that it uses: other functions and classes of the notebook,
    plain values, imports.  Modules of this course that it imports are copied beside it.

    Args:
        function: defined with `def`, in a cell or in a module.
        folder: where to write; what an earlier `export` wrote there is replaced.
        arguments: keyword arguments of the function, plain data.
        hosts: names of the machines.
        slots: ranks on each.
        cpus: processor cores that Slurm gives a rank; what loads data needs some too.
        interface: the network card that ranks talk through, as "eth0"; by default gloo (often wrongly) and
            NCCL choose.
        gpus: whether a rank has a GPU; without, DeepSpeed is told to use the CPU.
        time, account, partition: of the Slurm job.
        port: at which rank 0 is found under `run.sh`; a Slurm job takes one from its number.
        restarts: how often the Slurm job may have been started again, for whatever reason, for a failed rank
            to start it once more; a lost node does in any case.  The function should go on from its last
            checkpoint.

    Returns:
        The script's `Path`.  Beside it lie `hostfile`, `run.sh`, `job.sbatch` and `.deepspeed_env`.

    Raises:
        TypeError, NameError, ValueError: something that the function uses cannot be written down; the message
            names it.
        FileExistsError: the folder holds a file that `export` did not write.
    """
    folder, hosts = Path(folder), list(hosts)
    if not hosts or not all(re.fullmatch(r"[\w.-]+", host) for host in hosts) or len(set(hosts)) < len(hosts):
        raise ValueError(f"hosts must be different names of machines, not {hosts!r}")
    slots = whole(slots, "slots, the ranks per machine,", 1, 1024)
    cpus = whole(cpus, "cpus, the processor cores per rank,", 1, 1024)
    restarts = whole(restarts, "restarts", 0, 1000)
    script, name = Script(function), f"{function.__name__}.py"
    values = ", ".join(f"{key}={script.literal(key, value)}" for key, value in (arguments or {}).items())
    imports = sorted({*script.imports, *IMPORTS}, key=lambda line: (line.startswith("from"), line))
    interfaces = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME") if interface else ()
    variables = {"OMP_NUM_THREADS": "1", **dict.fromkeys(interfaces, interface)}
    variables |= {} if gpus else {"DS_ACCELERATOR": "cpu"}
    options = {"account": account, "partition": partition, "gpus-per-node": slots if gpus else None}
    words = {
        **{"written": WRITTEN, "name": function.__name__, "script": name, "arguments": values, "time": time},
        **{"first": hosts[0], "port": port, "nodes": len(hosts), "slots": slots, "cpus": cpus},
        "restarts": restarts,
        "imports": "\n".join(imports),
        "parts": together([*script.parts, LEAVE]),
        "options": "".join(f"#SBATCH --{key}={value}\n" for key, value in options.items() if value),
        "exports": f"export {' '.join(f'{key}={value}' for key, value in variables.items())}",
    }
    files = {
        name: SCRIPT.format(**words),
        "hostfile": "".join(f"{host} slots={slots}\n" for host in hosts),
        "run.sh": RUN.format(**words),
        "job.sbatch": SBATCH.format(**words),
        # DeepSpeed admits neither comments nor empty lines there
        ".deepspeed_env": "".join(f"{key}={value}\n" for key, value in variables.items()),
    }
    write(folder, files, files_to_copy(files[name]))
    return folder / name


def together(parts: Sequence[str]) -> str:
    """Definitions two empty lines apart, values below each other."""
    text = ""
    for before, part in zip(["", *parts], parts):
        apart = any(re.search(r"^(def|class|async|@)", text_of, flags=re.M) for text_of in (before, part))
        text += ("\n\n\n" if apart else "\n") + part
    return text.strip("\n")


def write(folder: Path, files: Mapping[str, str], modules: Mapping[str, str]) -> None:
    """Texts by name, and those of modules by place."""
    ours = folder / "run.sh"
    if folder.exists() and any(folder.iterdir()) and not (ours.exists() and WRITTEN in ours.read_text()):
        raise FileExistsError(f"{folder} holds other files: export into a folder of its own")
    if (folder / OURS).exists():
        shutil.rmtree(folder / OURS)
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    ours.chmod(0o755)
    for place, text in modules.items():
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).write_text(text, encoding="utf-8")
