// Turn after turn: play, pause, back, step, and a slider.  The figure's own script has `show(turn, forward)`, which draws
// a turn; `forward` says whether it is the one after the last that was shown.  data: last, turn (at the start), each (ms).
let turn = data.turn, timer = null;

function go(next) {
  const forward = next === turn + 1;
  turn = Math.min(Math.max(next, 0), data.last);
  slider.value = turn;
  back.disabled = turn === 0;
  step.disabled = turn === data.last;
  if (turn === data.last) pause();
  show(turn, forward);
}

function play() {
  if (timer) return pause();
  if (turn === data.last) go(0);
  timer = setInterval(() => (figure.isConnected ? go(turn + 1) : pause()), data.each);
  player.textContent = "❚❚ pause";
}

function pause() {
  clearInterval(timer);
  timer = null;
  player.textContent = "▶ play";
}

const pausing = (next) => () => { pause(); go(next()); };
const button = (words, onclick) => make("button", { type: "button", onclick }, words);
const player = button("▶ play", play);
const back = button("◀ back", pausing(() => turn - 1));
const step = button("step ▶", pausing(() => turn + 1));
const slider = make("input", { type: "range", min: 0, max: data.last, oninput: pausing(() => Number(slider.value)) });
slider.value = turn;
controls.append(player, back, step, make("label", {}, `${data.of} `, slider));
