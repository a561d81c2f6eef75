"""The site: built offline without a warning, and looked at in a browser without a network."""

import re
import subprocess
import sys
from functools import cached_property
from html.parser import HTMLParser
from urllib.parse import unquote, urlsplit

import nbformat
import pytest
from helpers.course.lesson.outline import beside, notebooks
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
        self.file, self.links, self.pictures, self.loaded, self.ids, self.folded = file, [], [], [], set(), 0
        self.feed(file.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.ids |= {found[name] for name in ("id", "name") if found.get(name)}
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        if tag == "img":
            self.pictures.append(found)
        if tag == "script" or tag == "link" and found.get("rel") == "stylesheet":
            self.loaded += filter(None, [found.get("src"), found.get("href")])
        self.folded += tag == "details" and "hide" in (found.get("class") or "").split()


class Site:
    """The built pages."""

    def __init__(self, folder):
        self.folder = folder

    @cached_property
    def pages(self):
        return {file: Page(file) for file in sorted(self.folder.rglob("*.html"))}

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
        assert site.of(notebook).folded == solutions, notebook.name


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
    assert all(link.startswith(("#", "https://")) for link in page.links)


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
