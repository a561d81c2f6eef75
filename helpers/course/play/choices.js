// Radio buttons for a `Grid`'s choices, and its numbers.  The figure's own script has `chose`, which draws anew.
const at = {}; // the place of the chosen option of each choice
for (const [name, choice] of Object.entries(data.choices)) at[name] = choice.at;

const place = (names) => names.reduce((index, name) => index * data.choices[name].options.length + at[name], 0);
const number = (column) => unpack(data.columns[column], place(data.columns[column].by));
const labelled = Object.entries(data.choices).filter(([, choice]) => choice.label);
const chosen = () => labelled.map(([name, choice]) => `${choice.label} ${choice.options[at[name]]}`).join(", ");

for (const [name, choice] of labelled) {
  if (choice.options.length < 2) continue;
  const buttons = choice.options.map((option, index) => {
    const choose = () => { at[name] = index; chose(); };
    const radio = make("input", { type: "radio", name: unique + name, checked: index === choice.at, onchange: choose });
    return make("label", {}, radio, ` ${option}`);
  });
  controls.append(make("fieldset", {}, make("legend", {}, choice.label), ...buttons));
}
