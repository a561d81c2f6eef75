"""The site: built offline without a warning, and looked at in a browser without a network."""

import re
import subprocess
import sys
from functools import cached_property
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import nbformat
import pytest
from helpers.course.syllabus.addresses import urls
from helpers.course.syllabus.numbers import FIRST_EDITION
from helpers.course.syllabus.outline import beside, notebooks
from helpers.paths import NOTEBOOKS, ROOT

pytestmark = pytest.mark.ranks  # it starts none, and takes a minute
WIDTHS = (1280, 420)
CONTRAST = """
  const rgb = (name) => getComputedStyle(document.querySelector("article p"))[name];
  const seen = (text) => text.match(/[\\d.]+/g).slice(0, 3).map((one) => (one / 255 <= 0.04045)
    ? one / 255 / 12.92 : ((one / 255 + 0.055) / 1.055) ** 2.4);
  const light = (text) => seen(text).reduce((sum, one, at) => sum + one * [0.2126, 0.7152, 0.0722][at], 0);
  const [ink, page] = [light(rgb("color")), light(getComputedStyle(document.body).backgroundColor)];
  return [page, (Math.max(ink, page) + 0.05) / (Math.min(ink, page) + 0.05)];"""


class Page(HTMLParser):
    """What a page links to, shows and calls its places."""

    def __init__(self, file):
        super().__init__()
        self.file, self.links, self.pictures, self.loaded, self.ids, self.near = file, [], [], [], set(), {}
        self.text = file.read_text(encoding="utf-8")
        self.feed(self.text)

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.ids |= {found[name] for name in ("id", "name") if found.get(name)}
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        if tag == "img":
            self.pictures.append(found)
        if tag == "script" or tag == "link" and found.get("rel") == "stylesheet":
            self.loaded += filter(None, [found.get("src"), found.get("href")])
        if tag == "link" and found.get("rel") in ("prev", "next"):
            self.near[found["rel"]] = Path(found["href"]).name


class Site:
    """The built pages."""

    def __init__(self, folder):
        self.folder = folder

    @cached_property
    def pages(self):
        files = sorted(set(self.folder.rglob("*.html")) - {old for old, _ in self.moved})
        return {file: Page(file) for file in files}

    @property
    def moved(self):
        """(page under a number of the first edition, the page that it leads to)."""
        return [
            (
                self.folder / "notebooks" / folder / f"{old}.html",
                self.folder / "notebooks" / folder / f"{new}.html",
            )
            for folder in (".", "more")
            for old, new in FIRST_EDITION.items()
        ]

    def of(self, notebook):
        """The page of a notebook."""
        return self.pages[self.folder / "notebooks" / notebook.relative_to(NOTEBOOKS).with_suffix(".html")]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, ROOT / "docs/build.py", "--into", folder, "--page", "07"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return Site(folder / "html")


def test_every_notebook_is_a_page_and_every_solution_is_folded(site):
    for notebook in [*notebooks(), *beside()]:
        cells = nbformat.read(notebook, as_version=4).cells
        solutions = sum("solution" in cell.metadata.get("tags", []) for cell in cells)
        assert site.of(notebook).text.count(">Show the solution<") == solutions, notebook.name


def said(cell):
    """What a stored cell says in plain text."""
    return "".join(output.get("data", {}).get("text/plain", "") for output in cell.get("outputs", ()))


def test_computed_tables_are_tables(site):
    assert not [page.file.name for page in site.pages.values() if "<p>| " in page.text]
    cells = nbformat.read(NOTEBOOKS / "09_zero_3.ipynb", as_version=4).cells
    tables = sum("text/markdown" in out.get("data", ()) for cell in cells for out in cell.get("outputs", ()))
    assert tables and site.of(NOTEBOOKS / "09_zero_3.ipynb").text.count("<table") >= tables


def test_what_was_to_be_guessed_waits_behind_a_fold_and_nobody_is_told_what_he_did_not_write(site):
    asked = 0
    for notebook in [*notebooks(), *beside()]:
        text, cells = site.of(notebook).text, nbformat.read(notebook, as_version=4).cells
        assert "not written yet" not in text and "You made no guess" not in text, notebook.name
        answers = [
            answer.partition("</details>\n")[0] for answer in text.split('<details class="answer">')[1:]
        ]
        guessed = sum("You made no guess" in said(cell) for cell in cells)
        assert len(answers) == guessed, notebook.name
        shown = sum("The answer is" in answer for answer in answers)
        assert shown == guessed and text.count("The answer is") >= guessed, notebook.name
        asked += guessed
    assert asked > 50


def test_a_figure_shows_its_description_only_when_asked(site):
    for notebook in notebooks():
        text = site.of(notebook).text
        folded = re.findall(r"<figcaption[^>]*>(<details><summary>Description</summary>)?", text)
        assert folded.count("") == text.count('<figure class="play"'), notebook.name


def test_a_reader_is_not_told_to_run_cells(site):
    for told in (
        "Run these cells",
        "Run the first",
        "run the next cell",
        "Did your cell",
        "a check, and it fills",
    ):
        assert not [page.file.name for page in site.pages.values() if told in page.text], told


def test_lessons_follow_each_other_and_their_companions_stand_beside(site):
    order = [lesson.with_suffix(".html").name for lesson in notebooks()]
    for before, lesson, after in zip(order, order[1:], order[2:]):
        page = site.pages[site.folder / "notebooks" / lesson]
        assert page.near == {"prev": before, "next": after}
        assert any(link.startswith("more/" + lesson) for link in page.links)


def test_every_link_within_the_site_leads_somewhere(site):
    broken = []
    for page in site.pages.values():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme:
                continue
            target = (page.file.parent / unquote(parts.path)).resolve() if parts.path else page.file
            known = target.exists() and (target not in site.pages or not parts.fragment)
            if not known and unquote(parts.fragment) not in getattr(site.pages.get(target), "ids", ()):
                broken.append((page.file.name, link))
    assert not broken


def test_every_link_to_a_source_names_a_file_of_the_project(site):
    if not (home := urls().get("Repository")):
        links = [link for page in site.pages.values() for link in page.links]
        assert not [link for link in links if "/blob/main/" in link and "distributed_training" in link]
        pytest.skip("the course is published nowhere: no page links to its source")
    sources = re.compile(re.escape(home) + r"/(?:blob|edit)/main/([^?#]+)")
    found = {match[1] for page in site.pages.values() for match in map(sources.search, page.links) if match}
    assert len(found) > len(notebooks())
    assert not [path for path in found if not (ROOT / path).exists()]


def test_every_picture_has_a_text(site):
    without = [page.file.name for page in site.pages.values() for one in page.pictures if not one.get("alt")]
    assert not without


def test_no_page_loads_anything_from_elsewhere(site):
    assert not [one for page in site.pages.values() for one in page.loaded if urlsplit(one).netloc]


def test_every_term_is_linked_where_it_is_first_used(site):
    text = (ROOT / "docs/glossary.md").read_text(encoding="utf-8")
    terms = re.findall(r"^(\S.*)$", re.search(r"```\{glossary\}\n(.*?)```", text, re.S)[1], re.M)
    linked = [link for page in site.pages.values() for link in page.links if "glossary.html#term-" in link]
    named = {unquote(urlsplit(link).fragment).removeprefix("term-").lower() for link in linked}
    assert {term.lower().replace(" ", "-") for term in terms} <= named
    for page in site.pages.values():
        links = [link for link in page.links if "glossary.html#term-" in link]
        assert len(links) == len(set(links)), page.file.name


def test_a_lesson_as_one_page_needs_no_other_file(site):
    page = Page(site.folder.parent / "07_zero_1.html")
    assert not page.loaded and page.pictures
    assert all(picture["src"].startswith("data:") for picture in page.pictures)
    near = [link for link in page.links if not link.startswith(("#", "https://"))]
    assert all((page.file.parent / unquote(urlsplit(link).path)).exists() for link in near)
    assert not (near and urls().get("Documentation")), "a page of a published site leads to that site"


def test_an_address_of_the_first_edition_leads_to_the_lesson_and_its_section(site, browser):
    assert site.moved
    for old, new in site.moved:
        browser.visit(f"{old.as_uri()}#a-section", arrives=f"{new.as_uri()}#a-section")


@pytest.mark.parametrize("wide", WIDTHS)
def test_no_page_scrolls_sideways(site, browser, wide):
    scrolling = []
    for page in site.pages:
        browser.visit(page.as_uri(), wide=wide)
        if browser.run("return document.documentElement.scrollWidth > innerWidth"):
            scrolling.append(page.relative_to(site.folder).as_posix())
    assert not scrolling


def test_figures_to_play_with_move(site, browser):
    with_figures = [page for page in site.pages if 'class="play"' in page.read_text(encoding="utf-8")]
    assert with_figures
    for page in with_figures:
        browser.visit(page.as_uri())
        still = browser.run("""const still = [];
          for (const figure of document.querySelectorAll("figure.play")) {
            const caption = figure.querySelector("figcaption"), before = caption.textContent;
            const moves = [...figure.querySelectorAll("button, input")].some((one) => {
              one.click();
              if (one.type === "range") {
                one.value = one.min;
                one.dispatchEvent(new Event("input", { bubbles: true }));
              }
              return caption.textContent !== before;
            });
            if (!moves) still.push(before);
          }
          return still;""")
        assert not still, page.name


def test_a_solution_opens_from_the_keyboard(site, browser):
    browser.visit(site.of(next(path for path in notebooks() if "07_" in path.name)).file.as_uri())
    find = 'const one = document.querySelector("details.hide");'
    assert browser.run(f'{find} one.querySelector("summary").focus(); return one.open') is False
    browser.key("Enter", 13)
    assert browser.run(f"{find} return one.open") is True


@pytest.mark.parametrize("scheme, dark", [("light", False), ("dark", True)])
def test_text_can_be_read_on_a_light_and_on_a_dark_page(site, browser, scheme, dark):
    browser.visit((site.folder / "index.html").as_uri(), prefers_color_scheme=scheme)
    page, contrast = browser.run(CONTRAST)
    assert (page < 0.2) is dark and contrast >= 4.5


def test_print_shows_the_lesson_alone(site, browser):
    browser.visit(
        site.of(next(path for path in notebooks() if "07_" in path.name)).file.as_uri(), media="print"
    )
    shown = 'return getComputedStyle(document.querySelector("{}")).display'
    assert browser.run(shown.format(".sidebar-drawer")) == "none"
    assert browser.run(shown.format("article")) != "none"


def test_search_finds_a_word_of_a_lesson(site, browser):
    browser.visit((site.folder / "search.html").as_uri() + "?q=prefetch")
    browser.run("""for (let at = 0; at < 100 && !document.querySelector("#search-results li"); at += 1)
      await new Promise((done) => setTimeout(done, 100));""")
    found = browser.run(
        'return [...document.querySelectorAll("#search-results li a")].map((one) => one.href)'
    )
    assert any("09_zero_3" in link for link in found)
