// Memory and seconds of a way to train.  Each number, and what counts as fitting, is looked up.
const verdict = make("p", { className: "verdict" });
const goals = data.goals.map((goal) => make("li", {}, goal));
const [left, right] = [20, 540], perGB = (right - left) / data.memory / 2;
let before = null; // where the bar of memory ended

// Boxes one after the other, cut off at the right edge.
function stack(names, scale) {
  let end = left;
  for (const name of names) {
    const x = Math.min(end, right);
    end += number(name) * scale;
    set(name, { x, width: Math.min(end, right) - x });
  }
}

function memory() {
  stack(data.categories, perGB / 10);
  const total = number("total") / 10, line = left + data.memory * perGB, end = Math.min(left + total * perGB, right);
  set("over", { width: Math.max(0, end - line), opacity: end > line ? 1 : 0 });
  if (before !== null) set("before", { transform: `translate(${before} 0)`, opacity: 0.8 });
  before = end;
  set("total", { text: `${total.toFixed(1)} GB${total > 2 * data.memory ? " ➔" : ""}` });
}

function time() {
  const limit = data.axes[number("axis")], scale = (right - left) / limit / 10;
  stack(data.parts, scale);
  const [fastest, slowest] = [number("fastest"), number("slowest")];
  const drawn = data.parts.reduce((sum, name) => sum + number(name), 0);
  set("range", { x: left + drawn * scale, width: Math.max(0, slowest - drawn) * scale });
  set("seconds", { text: `${tenths(fastest)} to ${tenths(slowest)} s` });
  for (let tick = 0; tick < 5; tick++) set(`tick ${tick}`, { text: (limit * tick) / 4 });
}

function chose() {
  at.moment = 0;
  at.moment = number("fullest at");
  memory();
  time();
  for (const name of [...data.categories, ...data.parts]) {
    set(`value ${name}`, { text: `${tenths(number(name))} ${data.parts.includes(name) ? "s" : "GB"}` });
    set(`entry ${name}`, { opacity: number(name) ? 1 : 0.35 });
  }
  const fits = number("fits"), refused = number("refused");
  const found = { total: tenths(number("total")), seconds: tenths(number("fastest")), slowest: tenths(number("slowest")) };
  Object.assign(found, { fits: data.verdicts[fits], moment: data.moments[at.moment], memory: data.memory.toFixed(1) });
  const said = data.refusals[refused] || fill(data.words, found);
  verdict.textContent = `${fits ? "✔" : "✘"} ${said}`;
  verdict.classList.toggle("good", fits === 1);
  svg.style.opacity = refused ? 0.3 : 1;
  tell(`${data.title} ${chosen()}. ${said}`);
  goals.forEach((goal, index) => goal.classList.toggle("done", goal.classList.contains("done") || Boolean(number("goals") & (1 << index))));
}

controls.before(verdict);
controls.after(make("ol", { className: "goals" }, ...goals));
chose();
