// A cursor over what a rank held.  The numbers of a moment are looked up; the largest names come first.
const number = (name) => unpack(data.columns[name], turn);
const told = (size) => (size / 10 ** data.digits).toFixed(data.digits);

function show() {
  const listed = data.names.map((name) => [name, number(name)]).filter(([, size]) => size);
  const largest = listed.sort((one, other) => other[1] - one[1]).slice(0, data.rows);
  const parts = data.categories.filter((name) => number(name)).map((name) => `${name} ${told(number(name))}`);
  const names = largest.map(([name, size]) => `${name} ${told(size)}`).join(", ");
  set("cursor", { transform: `translate(${data.places[turn]} 0)` });
  set("total", { text: `${told(number("total"))} ${data.unit}` });
  for (const name of data.categories) {
    set(`value ${name}`, { text: told(number(name)) });
    set(`entry ${name}`, { opacity: number(name) ? 1 : 0.35 });
  }
  for (let row = 0; data.names.length && row < data.rows; row++) {
    const [name, size] = largest[row] || ["", null];
    set(`name ${row}`, { text: name });
    set(`size ${row}`, { text: size === null ? "" : told(size) });
  }
  const found = { title: data.title, moment: data.moments[turn], count: data.count, phase: data.phases[turn] };
  Object.assign(found, { total: told(number("total")), unit: data.unit, parts: parts.join(", ") || "nothing" });
  tell(fill(data.words, { ...found, names: names ? `; by name: ${names}` : "" }));
}

// The pointer moves the cursor to the moment that lies nearest.
function point(event) {
  if (event.type === "pointermove" && !event.buttons) return;
  const edge = svg.getBoundingClientRect(), x = ((event.clientX - edge.left) / edge.width) * svg.viewBox.baseVal.width;
  const far = data.places.map((place) => Math.abs(place - x));
  const nearest = far.lastIndexOf(Math.min(...far));
  pause();
  go(nearest);
}
svg.addEventListener("pointerdown", point);
svg.addEventListener("pointermove", point);
controls.append(button("most", pausing(() => data.turn)));
go(turn);
