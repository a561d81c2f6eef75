// A ring all-reduce, exchange by exchange: what each rank holds, and which part travels.
const row = (rank, at) => part(`part ${rank} ${at}`);
const next = (rank) => (rank + 1) % data.held[0].length;

function show(shown, forward) {
  const moves = forward && !calm.matches ? data.sends[shown].map((at, rank) => travel(row(rank, at), row(next(rank), at))) : [];
  Promise.all(moves).then(() => shown === turn && draw()); // if the reader went on meanwhile, the newer turn is drawn
  set("sent", { text: data.sent[shown] });
  tell(data.says[shown]);
}

function draw() {
  data.held[turn].forEach((places, rank) => places.forEach((summed, at) => {
    for (let whose = 0; whose < data.held[0].length; whose++) {
      set(whose, { opacity: summed.includes(whose) ? 1 : data.pale }, row(rank, at));
    }
    row(rank, at).classList.remove("came");
  }));
  data.sends[turn].forEach((at, rank) => row(next(rank), at).classList.add("came"));
}

// A copy of a part, without its name, flies from one rank to the next.
function travel(from, to) {
  const [here, there] = [from, to].map((group) => group.getBBox());
  const copy = svg.appendChild(from.cloneNode(true));
  copy.removeAttribute("data-name");
  copy.querySelector("text").remove();
  for (const cell of copy.querySelectorAll("[data-name]")) {
    if (Number(cell.getAttribute("opacity")) < 1) cell.remove();
    cell.removeAttribute("data-name");
  }
  const way = [{}, { transform: `translate(${there.x - here.x}px, ${there.y - here.y}px)` }];
  const end = () => copy.remove();
  return copy.animate(way, { duration: 900, easing: "ease-in-out" }).finished.then(end, end);
}

go(turn);
