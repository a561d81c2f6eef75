from tests.play.conftest import browser as browser
