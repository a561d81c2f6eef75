// Ranks in a rack.  Cables thicken with the logarithm of their bytes; a chosen rank shows its partners.
let rank = 0;
const ranks = [...data.letters[0]].map((_, index) => index);

function partners(name) {
  const letters = data.letters[number(`groups ${name}`)];
  return ranks.filter((one) => letters[one] === letters[rank] && one !== rank);
}

function chose() {
  const found = { d: number("d"), total: tenths(number("total")), seconds: (number("seconds") / 100).toFixed(2) };
  for (const name of data.names) {
    found[name] = tenths(number(name));
    set(`value ${name}`, { text: `${found[name]} GB` });
    const width = 2.2 * Math.log10(1 + number(name));
    for (let host = 0; host < data.hosts; host++) set(`cable ${name} ${host}`, { "stroke-width": width });
  }
  set("total", { text: `${found.total} GB` });
  svg.style.opacity = number("refused") ? 0.3 : 1;
  const shared = data.names.map((name) => [name, partners(name)]).filter(([, others]) => others.length);
  for (const one of ranks) {
    const along = shared.filter(([, others]) => others.includes(one)).pop(); // experts before data
    const [cell, word] = part(`gpu ${one}`).children;
    const [colour, ink] = along ? data.colours[along[0]] : ["transparent", "currentColor"];
    cell.setAttribute("fill", colour);
    word.setAttribute("fill", ink);
    cell.setAttribute("stroke-width", one === rank ? 3 : 1);
  }
  const said = fill(number("refused") ? data.refusals[1] : data.words, found);
  const along = shared.map(([name, others]) => `${name} ${others.join(", ")}`).join("; ") || "no axis";
  tell(`${data.title} ${chosen()}. ${said} Rank ${rank} has partners along ${along}.`);
}

function point(chosenRank) {
  slider.value = rank = chosenRank;
  chose();
}
const slider = make("input", { type: "range", min: 0, max: ranks.length - 1, value: 0, oninput: () => point(Number(slider.value)) });
controls.append(make("label", {}, "partners of rank ", slider));
for (const one of ranks) part(`gpu ${one}`).addEventListener("click", () => point(one));
chose();
