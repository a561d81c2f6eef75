"""Lesson 00: other right deadlocks, and a script of the learner's own.  Ranks do not import this file."""

import pytest
from helpers import under_torchrun
from helpers.course.exercises import start_here as lesson_00
from tests.exercises.course import right_answers

pytestmark = pytest.mark.ranks


def test_the_learner_s_script_is_kept_and_is_a_script(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("helpers.paths.WORK", tmp_path)
    monkeypatch.chdir(tmp_path)
    mine = right_answers("00-main")["rows in one block, and a list of gradients"]
    assert lesson_00.main.check(mine) is mine
    assert "`main` is in train.py." in capsys.readouterr().out
    assert (tmp_path / "train.py").read_text().endswith('if __name__ == "__main__":\n    main()\n')
    under_torchrun((tmp_path / "train.py").read_text(), "train.py")
    assert capsys.readouterr().out.endswith("Both ranks came to the end of the script.\n")
