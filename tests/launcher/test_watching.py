"""What the kernel reads of its pipes: nothing yet, something, or the end."""

import os
import selectors
import struct
import time
from types import SimpleNamespace

import cloudpickle
import pytest
from helpers.tools.launcher.cluster.orders import REPORTED
from helpers.tools.launcher.cluster.shared_job import SharedJob
from helpers.tools.launcher.failures import Outcome, failure
from helpers.tools.launcher.pipes import AT_WORK
from helpers.tools.launcher.watching import read, take


@pytest.fixture
def pipe():
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    yield reader, writer
    for descriptor in (reader, writer):
        try:
            os.close(descriptor)
        except OSError:  # the test has closed it
            pass


def test_an_empty_pipe_is_not_a_closed_one(pipe):
    reader, writer = pipe
    assert read(reader) is None
    os.write(writer, b"word")
    assert read(reader) == b"word" and read(reader) is None
    os.close(writer)
    assert read(reader) == b""


def test_a_reader_that_came_too_early_reads_on(pipe):
    reader, writer = pipe
    outcome, reports, job = Outcome(0), [bytearray()], SimpleNamespace(file=None)
    with selectors.DefaultSelector() as selector:
        key = selector.register(reader, selectors.EVENT_READ, ("report", outcome))
        take(job, key, [outcome], reports, selector)
        assert selector.get_map()
        body = cloudpickle.dumps({"value": 7})
        os.write(writer, AT_WORK + struct.pack("!Q", len(body)) + body)
        take(job, key, [outcome], reports, selector)
        assert outcome.report == {"value": 7}
        os.close(writer)
        take(job, key, [outcome], reports, selector)
        assert not selector.get_map()


def report(body):
    return AT_WORK + struct.pack("!Q", len(body)) + body


def unreadable_here(outcome, folder):
    reader, writer = os.pipe()
    with (
        os.fdopen(reader, "rb"),
        os.fdopen(writer, "wb", buffering=0) as end,
        selectors.DefaultSelector() as selector,
    ):
        key = selector.register(reader, selectors.EVENT_READ, ("report", outcome))
        end.write(report(b"no pickle"))
        take(SimpleNamespace(file=None), key, [outcome], [bytearray()], selector)


def unreadable_elsewhere(outcome, folder):
    job = SharedJob(None, 2, "cpu", folder)
    job.path = folder
    for name, content in (("report", report(b"no pickle")), ("values", b"")):
        (folder / f"{name}-{outcome.rank}").write_bytes(content)
    job.take(outcome, REPORTED, "")


@pytest.mark.parametrize(
    "unreadable, clock", [(unreadable_here, time.monotonic), (unreadable_elsewhere, time.time)]
)
@pytest.mark.parametrize("seconds, guilty", [(-5, 1), (5, 0)])
def test_a_report_that_cannot_be_read_fails_by_the_clock_of_its_ranks(
    unreadable, clock, seconds, guilty, tmp_path
):
    outcome, other = Outcome(0), Outcome(1, status=1, ended_at=clock() + seconds)
    unreadable(outcome, tmp_path)
    assert outcome.error["returned"] == "value" and failure([outcome, other]).rank == guilty
