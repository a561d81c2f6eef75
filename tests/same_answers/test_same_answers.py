"""For every "same answer" of the course: the mistake it warns of is made, and the lesson's check sees it."""

import pytest
from helpers import machines_missing, ssh
from tests.same_answers.mistakes import MISTAKES
from tests.same_answers.planting import Lesson

pytestmark = pytest.mark.ranks


@pytest.fixture(scope="module", params=list(MISTAKES))
def lesson(request):
    if request.param == "18" and (reason := machines_missing() or ssh.problem()):
        pytest.skip(reason)
    lesson = Lesson(request.param, MISTAKES[request.param])
    yield request.param, lesson
    lesson.close()


def test_the_check_sees_each_mistake(lesson):
    number, running = lesson
    missed = {}
    for mistake in MISTAKES[number]:
        right, wrong, seen = running.check(mistake)
        if not seen:
            missed[mistake.name] = {"right": right, "wrong": wrong}
    assert not missed, missed
