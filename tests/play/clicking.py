"""Clicks through all combinations of a figure's choices."""

import itertools
import json

CLICK = """const found = [], fields = [...figure.querySelectorAll("fieldset")];
  const sets = fields.map((set) => set.querySelectorAll("input"));
  for (const way of {}) {{
    way.forEach((place, choice) => sets[choice][place].checked || sets[choice][place].click());
    found.push({});
  }}
  return found;"""


def combinations(grid):
    """[{choice: place}] of all that a reader can choose."""
    shown = {name: range(len(choice.options)) for name, choice in grid.choices.items() if choice.label}
    return [dict(zip(shown, places)) for places in itertools.product(*shown.values())]


def clicked(browser, ways, read="caption.textContent"):
    """What JavaScript's `read` gives after each way was chosen, one after the other."""
    return browser.run(CLICK.format(json.dumps([list(way.values()) for way in ways]), read))
