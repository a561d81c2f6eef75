"""The line that is shown while a launch waits: in a notebook, in a terminal, and nowhere else."""

import io
import signal
import sys

import pytest
from helpers.tools.launcher import progress
from helpers.tools.launcher.failures import Outcome
from helpers.tools.launcher.progress import Progress, saying
from tests.launcher.support import Notebook


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def at_once(monkeypatch):
    monkeypatch.setattr(progress, "DELAY", 0)
    monkeypatch.setattr(progress, "INTERVAL", 0)


def test_a_terminal_shows_one_line_that_goes(at_once, monkeypatch):
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    with Progress() as line:
        line.say("importing")
        line.tick()
        drawn = terminal.getvalue()
        assert drawn.startswith("\rimporting ... 0 s ") and "\n" not in drawn
    assert terminal.getvalue().removeprefix(drawn) == "\r" + 100 * " " + "\r"


def test_without_a_terminal_nothing_is_written(at_once, monkeypatch):
    monkeypatch.setattr(sys, "stderr", file := io.StringIO())
    with Progress() as line:
        line.tick()
    assert file.getvalue() == ""
    monkeypatch.setattr(sys, "stderr", None)  # as in a windowed program
    with Progress() as line:
        line.tick()


def test_a_quick_launch_shows_nothing(monkeypatch):
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    with Progress() as line:
        line.tick()
    assert terminal.getvalue() == ""


def test_it_says_what_is_going_on(at_once, monkeypatch):
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    outcomes = [Outcome(0), Outcome(1)]

    def drawn():
        line.tick(outcomes)
        return terminal.getvalue().rpartition("\r")[2].strip()

    with Progress() as line:
        assert drawn() == "the ranks are being started ... 0 s"
        line.say("the command starts")
        outcomes[1].at_work = True
        assert drawn() == "the command starts ... 0 s"
        outcomes[0].at_work = True
        assert drawn() == "the ranks are at work, 0 of 2 done ... 0 s"
        outcomes[1].report = {"value": 1}
        assert drawn() == "the ranks are at work, 1 of 2 done ... 0 s"
        with saying(lambda: "forward pass 2"):
            assert drawn() == "forward pass 2 ... 0 s"
        assert drawn() == "the ranks are at work, 1 of 2 done ... 0 s"


def test_an_interrupt_waits_for_a_tick():
    passed = []
    with pytest.raises(KeyboardInterrupt), Progress() as line:
        signal.raise_signal(signal.SIGINT)
        passed.append("the interrupt")
        line.tick()
        passed.append("the tick")
    assert passed == ["the interrupt"]
    with pytest.raises(KeyboardInterrupt), Progress():
        signal.raise_signal(signal.SIGINT)
        passed.append("the end")
    assert passed[-1] == "the end"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_notebook_keeps_nothing_of_it():
    pytest.importorskip("ipykernel")
    with Notebook() as notebook:
        notebook.run(
            "from helpers.tools.launcher import progress\nprogress.DELAY = 0.2"
        )  # shorter than any warm-up
        reply, messages = notebook.run(
            "from helpers import launch\nlaunch(lambda: __import__('time').sleep(2.5), 2);"
        )
        assert reply["status"] == "ok"
        shown = [
            message["content"]["data"]
            for message in messages
            if message["msg_type"] in ("display_data", "update_display_data")
        ]
        ids = {
            message["content"]["transient"]["display_id"]
            for message in messages
            if "display" in message["msg_type"]
        }
        assert [message["msg_type"] for message in messages].count("display_data") == 1 and len(ids) == 1
        texts = [data["text/plain"] for data in shown[1:-1]]
        assert shown[0] == {} and shown[-1] == {}
        assert texts[0].startswith("first launch of this kernel: importing") and texts[-1].startswith(
            "the ranks are at work, "
        )
        assert any(text.startswith("the ranks are at work, 0 of 2 done") for text in texts)
        assert all(text in data["text/html"] for text, data in zip(texts, shown[1:]))
        _, messages = notebook.run("progress.DELAY = 60  # longer than a launch\nlaunch(lambda: 1, 2);")
        assert not [message for message in messages if "display" in message["msg_type"]]
