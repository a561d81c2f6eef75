// What all figures share.  played.py puts this and a figure's own scripts into one function, run once in each output.
const figure = document.currentScript.closest("figure.play");
const data = JSON.parse(figure.querySelector('script[type="application/json"]').textContent);
const caption = figure.querySelector("figcaption");
const calm = matchMedia("(prefers-reduced-motion: reduce)");

// The picture becomes a part of the page: it takes the page's colours, and what Python drew can be moved by its name.
// A page may hold a figure twice, and ids and groups of radio buttons belong to the page.
const image = figure.querySelector("img");
const unique = `play-${Math.random().toString(36).slice(2)}-`;
const bytes = Uint8Array.from(atob(image.src.split(",")[1]), (letter) => letter.charCodeAt(0));
const source = new TextDecoder().decode(bytes).replaceAll("play-", unique);
const svg = document.importNode(new DOMParser().parseFromString(source, "image/svg+xml").documentElement, true);
svg.setAttribute("role", "img");
svg.setAttribute("aria-label", image.alt);
image.replaceWith(svg);
caption.setAttribute("aria-live", "polite");
// In JupyterLab arrow keys and letters are the notebook's, unless the element that has the focus says otherwise.
figure.addEventListener("focusin", (event) => { event.target.dataset.lmSuppressShortcuts = "true"; });

const part = (name, inside = svg) => inside.querySelector(`[data-name="${name}"]`);

// Change what Python drew: set("total", { text: "59.3 GB", opacity: 1 }).
function set(name, attributes, inside = svg) {
  const found = part(name, inside);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "text") found.textContent = value;
    else found.setAttribute(key, value);
  }
}

// The sentence: for the eye under the figure, for the ear as the picture's description.
function tell(words) {
  caption.textContent = words;
  svg.setAttribute("aria-label", words);
}

// A template such as "{total} GB", filled.
const fill = (words, found) => words.replace(/{(\w+)}/g, (_, name) => found[name]);

// Tenths as Python writes them, with one digit behind the point.
const tenths = (number) => (number / 10).toFixed(1);

// An element of the page: make("button", { type: "button", onclick: forward }, "step").
function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

const controls = make("div", { className: "controls" });
svg.after(controls);
