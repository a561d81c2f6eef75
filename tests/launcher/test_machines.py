"""Ranks on machines made of namespaces: where they are, what passes between them, how it fails, and that
nothing is left.

Where the system does not allow them these tests are skipped, and the reason says how to allow it.
"""

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import cloudpickle
import numpy as np
import psutil
import pytest
from helpers import Machines, corpus, launch, models, theory
from helpers.tools.launcher.failures import LaunchError, RankError
from helpers.tools.machines.namespaces import problem
from helpers.tools.machines.switch import SEND_ONCE
from tests.launcher.support import (
    INTERFACES,
    PROMPT,
    SLACK,
    all_reduced,
    command,
    crowded,
    eventually,
    listening_addresses,
    ours,
    running,
)

cloudpickle.register_pickle_by_value(sys.modules[__name__])

ADDRESSES = {
    0: {"01004D0A", "0000000000000000FFFF000001004D0A"},
    1: {"02004D0A", "0000000000000000FFFF000002004D0A"},
}  # 10.77.0.1 and .2
MBIT = 125_000  # bytes


@pytest.fixture(scope="module", autouse=True)
def allowed():
    if reason := problem():
        pytest.skip(reason)


def system():
    """What machines could leave: namespaces that a process of these tests is in or has open, devices and
    mounts."""
    found = set()
    for process in [psutil.Process(), *ours()]:
        for folder in ("ns", "fd"):
            try:
                names = os.listdir(f"/proc/{process.pid}/{folder}")
                targets = {os.readlink(f"/proc/{process.pid}/{folder}/{name}") for name in names}
            except OSError:  # it is just ending
                continue
            found |= {target for target in targets if target.startswith(("net:", "uts:", "user:", "mnt:"))}
    return {
        "namespaces": found,
        "devices": os.listdir("/sys/class/net"),
        "mounts": Path("/proc/self/mountinfo").read_text(),
    }


@pytest.fixture(autouse=True)
def no_machine_is_left():
    before = system()
    yield
    assert eventually(lambda: system() == before), system()


@pytest.fixture
def pair(no_machine_is_left):
    with Machines(2) as machines:
        yield machines


def look():
    return {
        name: os.environ[name]
        for name in ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "CROSS_SIZE", "MASTER_ADDR")
    }


@pytest.mark.parametrize(
    "where, local",  # of each rank: its number on its machine, and how many there are
    [
        (4, [(0, 2), (1, 2), (0, 2), (1, 2)]),
        (3, [(0, 2), (1, 2), (0, 1)]),
        ([0, 1, 0, 1], [(0, 2), (0, 2), (1, 2), (1, 2)]),
        ([1, 1], [(0, 2), (1, 2)]),
    ],
)
def test_every_rank_knows_its_machine_and_its_number_there(where, local):
    with Machines(2) as machines:
        place = machines.place(where)
        reports = launch(
            lambda: (socket.gethostname(), socket.gethostbyname("machine1"), look(), all_reduced(1.0)),
            len(place.of),
            on=place,
        )
    used = sorted(set(place.of))
    for rank, (host, address, variables, total) in enumerate(reports):
        assert host == f"machine{place.of[rank]}" and address == "10.77.0.2" and total == len(place.of)
        node = {"GROUP_RANK": str(used.index(place.of[rank])), "CROSS_SIZE": str(len(used))}
        own = dict(zip(("LOCAL_RANK", "LOCAL_WORLD_SIZE"), map(str, local[rank])))
        assert variables == {"RANK": str(rank), "MASTER_ADDR": f"10.77.0.{place.of[0] + 1}", **node, **own}


def test_ranks_listen_at_their_card_and_reach_nothing_else():
    def job():
        with socket.socket() as outside:
            refused = outside.connect_ex((beyond, port))
        return (
            listening_addresses(),
            os.strerror(refused),
            [os.environ[name] for name in INTERFACES],
            os.getuid(),
        )

    with socket.create_server(("0.0.0.0", 0)) as server, Machines(2) as machines:
        beyond, port = "192.0.2.1", server.getsockname()[1]
        reports = launch(job, 2, on=machines)
        beyond = "127.0.0.1"
        loopback = launch(job, 2, on=machines)
    for machine, (listening, refused, interfaces, user) in enumerate(reports):
        assert listening and set(listening) <= ADDRESSES[machine]
        assert refused == "Network is unreachable" and interfaces == ["eth0"] * 3 and user == os.getuid()
    assert [refused for _, refused, _, _ in loopback] == ["Connection refused"] * 2


# --- What passes the cable


def crossed():
    """In a rank: bytes that it has handed to connections with another machine, and how many of them were sent
    again."""
    total = repeated = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            with socket.socket(fileno=os.dup(int(name))) as connection:
                if (
                    connection.family not in (socket.AF_INET, socket.AF_INET6)
                    or connection.getsockname()[0] == connection.getpeername()[0]
                ):
                    continue
                sent, again = struct.unpack_from(
                    "=QQ", connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256), 200
                )
        except OSError:  # no socket, or one without a peer
            continue
        total, repeated = total + sent, repeated + again
    return total, repeated


def settings():
    """In a rank: those of TCP that a machine has of its own, and whether this process may write them."""
    files = [Path("/proc/sys/net/ipv4", name) for name in SEND_ONCE]
    return [int(file.read_text()) for file in files], all(os.access(file, os.W_OK) for file in files)


def test_nothing_is_sent_twice_for_being_late(pair):
    found, writable = launch(settings, 2, on=pair)[1]
    if not writable:
        pytest.skip("this system forbids to write a network namespace's settings")
    assert found == list(SEND_ONCE.values())
    assert settings()[0] != found, "a setting of this machine was changed"


def reduced(machines, elements):
    """In a rank: all-reduce fp32 numbers; (what every card counted, this rank's bytes across)."""
    import torch

    all_reduced(1.0)
    tensor = torch.ones(elements)
    with machines.counting() as cable:
        before, _ = crossed()  # all is silent now: what gloo's thread still had to send has been sent
        torch.distributed.all_reduce(tensor)
    return cable, crossed()[0] - before


def stepped(machines, stage):
    """In a rank: the second step of ZeRO on the course's GPT in bf16; (as above, parameters)."""
    import deepspeed

    zero = {"stage": stage, "reduce_bucket_size": 1_000_000}
    optimizer = {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}}
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "bf16": {"enabled": True},
        "optimizer": optimizer,
        "zero_optimization": zero,
    }
    model = models.GPT(models.GPTSize())
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    for step in range(2):
        rows = corpus.batch(step, 8, 32, engine.global_rank, 4)
        with machines.counting() as cable:
            before, _ = crossed()
            engine.backward(engine(*rows))
            engine.step()
    return cable, crossed()[0] - before, sum(parameter.numel() for parameter in model.parameters())


def check(cable, reports, of, predicted):
    """Every card sent what was predicted within 2 %, and exactly what the ranks handed over, and 66 bytes of
    headers to each frame.

    Rarely a frame's header has an option more, of 12 bytes: it acknowledges what came out of order, or twice.
    """
    for machine, card in enumerate(cable):
        assert card.sent == pytest.approx(predicted, rel=0.02)
        across = sum(report[1] for report, at in zip(reports, of) if at == machine)
        options = card.sent - theory.FRAME_HEADER * card.frames_sent - across
        assert options % 12 == 0 and 0 <= options <= 12 * card.frames_sent / 10


@pytest.mark.parametrize("where, hops", [([0, 0, 1, 1], 1), ([0, 1, 0, 1], 2)])
def test_an_all_reduce_crosses_as_often_as_its_ring_does(pair, where, hops):
    """A ring of four: each hop carries 2 x 3/4 of the tensor; neighbours together, one of a machine's two
    hops crosses, dealt out both do."""
    reports = launch(reduced, 4, {"machines": pair, "elements": 1_000_000}, on=pair.place(where))
    cable = reports[0][0]
    assert all(report[0] == cable for report in reports)
    check(cable, reports, where, hops * theory.wire_bytes("all_reduce", 4_000_000, 4))
    assert [(card.sent, card.frames_sent) for card in cable] == [
        (card.received, card.frames_received) for card in reversed(cable)
    ]


@pytest.mark.parametrize("stage", [0, 1])
def test_a_step_of_data_parallelism_and_of_zero_1_sends_across_what_one_rank_sends(pair, stage):
    """Every collective is a ring through all ranks, of which one hop leaves each machine."""
    reports = launch(stepped, 4, {"machines": pair, "stage": stage}, on=pair)
    predicted = theory.zero_wire_bytes(reports[0][2], 4, stage, whole_buckets=stage == 1)
    check(reports[0][0], reports, [0, 0, 1, 1], predicted)


def test_a_limited_card_is_not_quicker_than_its_limit():
    """The least time that the bytes need, which no load makes less; what a card saved up while it was idle is
    sent at once."""

    def timed():
        all_reduced(1.0)
        started = time.perf_counter()
        cable, _ = reduced(machines, 250_000)
        return time.perf_counter() - started, cable

    with Machines(2, bandwidth="20 Mbit") as machines:
        reports = launch(timed, 2, on=machines)
    for seconds, cable in reports:
        assert cable[0].sent > 1_000_000 and seconds > (cable[0].sent - 140_000) / (20 * MBIT)


# --- What goes wrong


def raises():
    all_reduced(1.0)
    if os.environ["RANK"] == "2":
        raise RuntimeError("enough")
    all_reduced(1.0)


def killed():
    all_reduced(1.0)
    if os.environ["RANK"] == "3":
        os.kill(os.getpid(), signal.SIGKILL)
    all_reduced(1.0)


def sleeps():
    all_reduced(1.0)
    if os.environ["RANK"] == "1":
        time.sleep(60)
    all_reduced(1.0)


@pytest.mark.parametrize(
    "function, rank, words",
    [
        (raises, 2, "rank 2 of 4 on machine 1 raised RuntimeError: enough"),
        (killed, 3, "rank 3 of 4 on machine 1 was killed by SIGKILL"),
        (
            sleeps,
            1,
            "rank 1 of 4 on machine 0 hung: still running after {} s, in no collective, while "
            "ranks 0, 2, 3 on machines 0, 1 waited for it",
        ),
    ],
)
def test_a_failure_names_the_rank_and_its_machine(pair, function, rank, words):
    timeout = crowded(4) if function is sleeps else 60
    with pytest.raises(RankError) as caught:
        launch(function, 4, on=pair, timeout=timeout)
    assert str(caught.value).splitlines()[0] == words.format(timeout) and caught.value.rank == rank


def test_who_counts_alone_is_shown_at_its_own_line(pair):
    def job():
        if os.environ["RANK"] == "1":
            with pair.counting():
                return 0

    timeout = crowded(4)
    with pytest.raises(RankError) as caught:
        launch(job, 2, on=pair, timeout=timeout)
    lines = str(caught.value).splitlines()
    assert lines[0] == f"rank 1 of 2 on machine 1 hung: still running after {timeout} s, in no collective"
    assert lines[-1] == "      with pair.counting():"


def cut(machines, moments):
    """In a rank: an all-reduce that takes seconds, in the middle of which machine 1 is unplugged, and perhaps
    plugged in again."""
    import torch

    def act():
        for seconds, what in moments:
            time.sleep(seconds)
            getattr(machines, what)(1)

    all_reduced(1.0)
    if os.environ["RANK"] == "0":
        threading.Thread(target=act).start()
    tensor = torch.ones(800_000)
    torch.distributed.all_reduce(tensor)
    return tensor.unique().tolist()


def test_an_unplugged_machine_is_a_hang_that_names_it_and_its_job_goes_on_where_it_is_plugged_in_again():
    with Machines(2, bandwidth="15 Mbit") as machines:
        assert (
            launch(cut, 4, {"machines": machines, "moments": [(0.2, "unplug"), (0.1, "plug")]}, on=machines)
            == [[4.0]] * 4
        )
        assert machines.unplugged == []
        timeout = crowded(4)
        with pytest.raises(RankError) as caught:
            launch(cut, 4, {"machines": machines, "moments": [(0.2, "unplug")]}, on=machines, timeout=timeout)
        assert machines.unplugged == [1]
        lines = str(caught.value).splitlines()
        assert lines[:2] == [
            f"ranks 0, 1, 2, 3 of 4 on machines 0, 1 hung in all_reduce after {timeout} s",
            "  machine 1 is unplugged",
        ]
        machines.plug(1)
        assert launch(lambda: all_reduced(1.0), 4, on=machines) == [4.0] * 4


def test_machines_whose_process_is_killed_fail_the_job_in_words_and_the_next_ones_work():
    machines = Machines(2)
    with machines:
        holder = machines.process.pid

        def job():
            if os.environ["RANK"] == "0":
                os.kill(holder, signal.SIGKILL)
                assert eventually(lambda: "eth0" not in (name for _, name in socket.if_nameindex()))
            return all_reduced(1.0)

        with pytest.raises(RankError) as caught:
            launch(job, 2, on=machines, timeout=2)
        assert "  the machines have ended: start them again" in str(caught.value).splitlines()
        with pytest.raises(LaunchError, match="^the machines have ended: start them again$"):
            launch(lambda: None, 2, on=machines)
    with machines:
        assert launch(lambda: all_reduced(1.0), 2, on=machines) == [2.0, 2.0]


# --- What is left

OCCUPIED = """
import os, subprocess, time
from pathlib import Path
from helpers import launch, Machines

def occupied(folder):
    import deepspeed
    deepspeed.init_distributed()
    rank = os.environ["RANK"]
    subprocess.Popen(["sleep", "60"], start_new_session=rank == "0")
    Path(folder, "ready-" + rank).touch()
    deepspeed.comm.barrier() if rank == "1" else time.sleep(60)

with Machines(2) as machines:
    launch(occupied, 2, {"folder": FOLDER}, on=machines)
"""


def occupy(kernel):
    for file in kernel.folder.glob("ready-*"):
        file.unlink()
    kernel.start(OCCUPIED.replace("FOLDER", repr(str(kernel.folder))))
    assert kernel.ready()
    processes = kernel.processes()
    assert len(processes) == 7  # kernel, forkserver, the machines', two ranks, and what they have started
    return processes


def test_an_interrupted_or_killed_kernel_leaves_no_machine(kernels):
    (kernel,) = kernels()
    stay = [
        kernel.process_itself(),
        *(child for child in occupy(kernel)[0].children() if "forkserver" in command(child)),
    ]
    others = [process for process in kernel.processes() if process not in stay]
    kernel.interrupt()
    assert kernel.answer() == [None, ["KeyboardInterrupt", ""]]
    assert len(others) == 5 and eventually(lambda: not running(others)) and kernel.works()
    assert sorted(kernel.processes(), key=str) == sorted(stay, key=str)
    processes = occupy(kernel)
    os.kill(kernel.process.pid, signal.SIGKILL)
    assert eventually(lambda: not running(processes), PROMPT + SLACK), running(processes)


def test_interrupts_while_machines_are_made_and_ended(kernels):
    (kernel,) = kernels()
    kernel.run("from helpers import Machines")
    for step in range(12):
        kernel.start("with Machines(4, '1 Gbit') as machines:\n    value = len(machines.cable())")
        time.sleep(step * 0.015)
        kernel.interrupt()
        assert kernel.answer() in (
            [None, ["KeyboardInterrupt", ""]],
            [4, ["KeyboardInterrupt", ""]],
            [4, None],
        )
        assert eventually(lambda: kernel.processes() == [kernel.process_itself()])


def test_up_and_down_with_faults_leaves_nothing():
    """What the fixture compares afterwards: processes, descriptors, namespaces, devices, mounts, files."""
    for fault in (raises, killed, None, KeyError):
        with pytest.raises((RankError, KeyError)), Machines(3) as machines:
            launch(fault or (lambda: os._exit(3)), 4, on=machines) if fault is not KeyError else {}["missing"]
    with pytest.raises(ValueError, match="^these machines are not up"):
        machines.cable()


def test_what_cannot_be_placed_is_refused_before_a_process_starts(pair):
    for error, words, options in (
        (TypeError, r"on must be Machines or what their place\(...\) returns, .*, not 2", {"on": 2}),
        (ValueError, "on says where 4 ranks run, and there are 2", {"on": pair.place(4)}),
        (ValueError, "machines take ranks on the CPU", {"on": pair, "device": "cuda"}),
        (ValueError, "these machines are not up", {"on": Machines(2)}),
    ):
        with pytest.raises(error, match=words):
            launch(lambda: None, 2, **options)


def test_a_function_with_machines_that_is_not_run_on_them_says_so(pair):
    with pytest.raises(RankError, match="ValueError: these machines are not up"):
        launch(lambda: pair.cable(), 2)


NO_NUMBERS = (
    True,
    False,
    1.0,
    0.0,
    "1",
    "",
    None,
    [1],
    b"0",
    float("nan"),
    1j,
    np.float64(1),
    np.bool_(True),
)
NO_MACHINES = (2, -1, 10**400, np.int64(2), np.uint8(255))


def test_a_wrong_number_is_refused_and_the_machines_go_on(pair):
    acts = {
        "unplug": pair.unplug,
        "plug": pair.plug,
        "start": lambda number: pair.start(number, ["true"]),
        "place": lambda number: pair.place([0, number]),
    }
    for number in NO_NUMBERS + NO_MACHINES:
        kind = TypeError if any(number is wrong for wrong in NO_NUMBERS) else ValueError
        for name, act in acts.items():
            with pytest.raises(kind, match="^the number of a machine must be from 0 to 1, not ") as caught:
                act(number)
            assert len(str(caught.value)) < 200, name
    assert len(pair.cable()) == 2 and pair.unplugged == []
    pair.unplug(np.int64(1))
    assert pair.unplugged == [1]
    pair.plug(np.uint8(1))
    assert launch(lambda: all_reduced(1.0), 2, on=pair.place(np.array([1, 0]))) == [2.0, 2.0]


BAD_ORDERS = [
    *(b"", b"{", b"\xff\xfe", b"\x00", b"null", b"7", b'"look"', b"[]", b"{}", b"[" * 4000, b"1" * 4090),
    *(json.dumps({"order": "look"}).encode() + bytes(8000), b'{"order": "look", "machine": ' + b"9" * 60_000),
    *(
        json.dumps({"order": order}).encode()
        for order in (None, 1, ["look"], {}, "end", "unplug", "plug", "job")
    ),
    *(
        json.dumps({"order": order, "machine": machine}).encode()
        for order in ("unplug", "plug", "job")
        for machine in (True, 1.0, 0.0, "1", None, [1], -1, 2, 10**300, float("nan"))
    ),
    *(
        json.dumps({"order": "count", "of": of}).encode()
        for of in (0, -1, True, 1.0, "1", None, [1], 10**300)
    ),
    b'{"order": "count"}',
]


def bad_orders(machines):
    """In a rank: send every one, with a socket for the answer, without one, and with other descriptors; how
    many are answered with a refusal."""
    refused = 0
    for body in BAD_ORDERS:
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with mine, theirs, open(os.devnull) as nothing:
            machines.orders.send(body)
            socket.send_fds(machines.orders, [body], [nothing.fileno()])
            socket.send_fds(machines.orders, [body], [theirs.fileno(), nothing.fileno(), theirs.fileno()])
            socket.send_fds(machines.orders, [body], [theirs.fileno()])
            mine.settimeout(20)
            refused += "refused" in json.loads(mine.recv(1 << 16))
    return refused


def test_no_datagram_of_a_rank_ends_the_machines(pair):
    folder = f"/proc/{pair.process.pid}/fd"
    launch(lambda: None, 1, on=pair)
    descriptors = len(os.listdir(folder))
    assert launch(bad_orders, 1, {"machines": pair}, on=pair) == [len(BAD_ORDERS)]
    assert eventually(lambda: len(os.listdir(folder)) <= descriptors)
    assert launch(lambda: all_reduced(1.0), 2, on=pair) == [2.0, 2.0]


def deaf(machines):
    """In a rank: ask with a socket that has no room for an answer."""
    mine, theirs = socket.socketpair()
    theirs.setblocking(False)
    try:
        while True:
            theirs.send(bytes(1 << 16))
    except BlockingIOError:
        pass
    socket.send_fds(machines.orders, [b'{"order": "look"}'], [theirs.fileno()])
    return len(machines.cable())


def test_who_does_not_read_an_answer_holds_nobody_up(pair):
    assert launch(deaf, 1, {"machines": pair}, on=pair, timeout=20) == [2]


def test_ranks_that_ended_while_they_waited_for_silence_are_not_waited_for(pair):
    def job():
        if os.environ["RANK"] == "0":
            pair.counting().__enter__()
        raise RuntimeError("enough")

    with pytest.raises(RankError, match="raised RuntimeError: enough"):
        launch(job, 2, on=pair)
    with pair.counting() as cable:
        pass
    assert [card.sent for card in cable] == [0, 0]


def test_machines_are_closed_in_any_order_twice_and_by_their_own_process_alone():
    with Machines(2) as machines:
        program = machines.start(0, ["sleep", "60"])
        child = os.fork()
        if child == 0:  # leaves the block as an error of a forked child does
            machines.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert program.poll() is None and machines.cable()
        with pytest.raises(ValueError, match="up already"):
            machines.__enter__()
        machines.close()
        machines.close()
        assert program.returncode == -signal.SIGKILL
    for use in (
        machines.cable,
        lambda: machines.unplug(0),
        lambda: machines.plug(0),
        lambda: machines.start(0, ["true"]),
        lambda: machines.counting().__enter__(),
        lambda: machines.unplugged,
    ):
        with pytest.raises(ValueError, match="^these machines are not up"):
            use()


def test_a_program_started_on_a_machine_is_there_and_ends_with_it(tmp_path):
    with Machines(2) as machines:
        look = "import os, socket; print(socket.gethostname(), os.getcwd(), os.environ['SAID'], os.getuid())"
        program = machines.start(
            1,
            [sys.executable, "-c", look],
            cwd=tmp_path,
            env={"SAID": "so"},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert program.communicate(timeout=60)[0] == f"machine1 {tmp_path} so {os.getuid()}\n"
        missing = machines.start(0, ["no-such-program"], stderr=subprocess.PIPE, text=True)
        assert (
            missing.communicate(timeout=60)[1] == "no-such-program: No such file or directory\n"
            and missing.returncode == 1
        )
        lasting = machines.start(0, ["sh", "-c", "sleep 60 & sleep 60"])
        assert eventually(
            lambda: (
                len(psutil.Process(lasting.pid).children()) == 2
                or command(psutil.Process(lasting.pid)).startswith("sleep")
            )
        )
        started = [psutil.Process(lasting.pid), *psutil.Process(lasting.pid).children()]
    assert lasting.returncode == -signal.SIGKILL and eventually(lambda: not running(started))
