// A pipeline's schedule over time.  Starts are looked up; what has begun before the cursor is drawn, the rest is pale.
const names = Object.keys(data.choices), boxes = part("boxes"), rows = [...Array(data.stages).keys()];
const { left, right, top: highest, row: high } = data.place;
let limit, events; // ticks at the right edge; of the chosen schedule { kind, stage, micro, start, end }

function show(time) {
  if (events) draw(time);
}

function chose() {
  const order = data.order[place(names.filter((name) => name !== "slow"))], starts = data.starts[place(names)], takes = data.ticks[at.slow];
  events = order.match(/.{3}/g).map(([kind, stage, micro], index) => {
    const start = unpack(starts, index);
    return { kind, stage: Number(stage), micro, start, end: start + takes[stage][kind] };
  });
  limit = data.axes[number("axis")];
  for (let tick = 0; tick < 5; tick++) set(`tick ${tick}`, { text: (limit * tick) / 8 });
  for (const kind of "FBIW") set(`kind ${kind}`, { opacity: order.includes(kind) ? 1 : 0.25 });
  set("idle", { text: `${tenths(number("idle"))} % idle` });
  slider.max = data.last = number("total");
  while (boxes.children.length < events.length) boxes.append(boxes.firstChild.cloneNode(true));
  go(data.last);
}

function draw(time) {
  const scale = (right - left) / limit;
  [...boxes.children].forEach((group, index) => {
    const event = events[index], [box, word] = group.children;
    group.setAttribute("display", event ? "inline" : "none");
    if (!event) return;
    const { kind, stage, micro, start, end } = event, y = highest + stage * high, width = (end - start) * scale;
    group.setAttribute("opacity", start <= time ? 1 : 0.2);
    for (const [key, value] of Object.entries({ x: left + start * scale, y, width, fill: data.looks[kind][0] })) box.setAttribute(key, value);
    for (const [key, value] of Object.entries({ x: left + start * scale + width / 2, y: y + 20, fill: data.looks[kind][1] })) word.setAttribute(key, value);
    word.textContent = width < 9 ? "" : micro;
  });
  set("cursor", { transform: `translate(${left + time * scale} 0)` });
  const held = rows.map((stage) => inFlight(stage, time));
  rows.forEach((stage) => squares(stage, held[stage]));
  const most = rows.map((stage) => number(`most ${stage}`)).join(", ");
  const found = { idle: tenths(number("idle")), total: (data.last / 2).toFixed(1), most };
  const now = fill(data.now, { time: (time / 2).toFixed(1), held: held.join(", ") });
  tell(`${data.title} ${chosen()}: ${fill(data.words, found)} ${now}`);
}

function inFlight(stage, time) {
  const own = events.filter((event) => event.stage === stage);
  const released = own.some(({ kind }) => kind === "W") ? "W" : "B";
  const began = own.filter(({ kind, start }) => kind === "F" && start <= time).length;
  return began - own.filter(({ kind, end }) => kind === released && end <= time).length;
}

function squares(stage, held) {
  const most = number(`most ${stage}`);
  for (let index = 0; index < 8; index++) set(`held ${stage} ${index}`, { opacity: index < most ? 1 : 0, "fill-opacity": index < held ? 1 : 0 });
  set(`most ${stage}`, { text: `${held}, at most ${most}` });
}

chose();
