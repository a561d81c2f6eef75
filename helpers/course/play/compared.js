// Two bars on one axis: what is chosen, part by part, beside a base.
const goals = data.goals.map((goal) => make("li", {}, goal));
const shown = (name) => (number(name) / 100).toFixed(2);

function chose() {
  const scale = (data.right - data.left) / Math.max(number("base"), number("total"));
  for (const [row, total, prefix] of [["base", "base", "base "], ["yours", "total", ""]]) {
    let end = data.left;
    for (const name of data.parts) {
      const width = number(prefix + name) * scale;
      set(`${row} ${name}`, { x: end, width });
      end += width;
    }
    set(`total ${row}`, { text: `${shown(total)} ${data.unit}` });
  }
  if (data.below) {
    const end = data.left + number(data.parts[0]) * scale;
    const x = Math.max(data.left, end - number(data.below) * scale);
    set("below", { x, width: end - x });
  }
  for (const name of data.legend) set(`value ${name}`, { text: `${shown(name)} ${data.unit}` });
  const found = Object.fromEntries(data.told.map((name) => [name, shown(name)]));
  tell(`${data.title} ${chosen()}. ${fill(data.words, found)}`);
  goals.forEach((goal, index) => goal.classList.toggle("done", goal.classList.contains("done") || Boolean(number("goals") & (1 << index))));
}

controls.after(make("ol", { className: "goals" }, ...goals));
chose();
