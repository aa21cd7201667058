// A tour of λ, τ and k. Its sliders move the controls of the page, so that the browser mixes the shown
// answer anew; the model runs only if that answer cannot be mixed.

const FIRST_LAMBDA = "0.5", NEAREST = 6, OCTAVES = 5;
const theTour = { view: null, step: null, box: null };

// The stops: each has a setting, what it does, and a scale from the slider, in [0, 1], to its values.
const STOPS = [
  { name: "lmbda", title: "λ, how much the memory counts",
    says: "p = λ p_kNN + (1 − λ) p_LM. At 0 the model writes alone, and at 1 the neighbors alone. Move it: a dot marks each word that would be another one.",
    value: (at) => at, at: (value) => value },
  { name: "temperature", title: "τ, how much nearness counts",
    says: "The neighbors’ votes are weighed by exp(−distance / τ). If τ is small, the nearest neighbor decides. If it is large, all count the same.",
    value: (at, live) => live.temperature * 2 ** ((2 * at - 1) * OCTAVES),
    at: (value, live) => 0.5 + Math.log2(value / live.temperature) / OCTAVES / 2 },
  { name: "k", title: "k, how many neighbors vote",
    says: "With one neighbor a single place of the texts is copied. With many the vote is broader, and what one of them says counts less.",
    value: (at, live) => Math.round(live.k ** at), at: (value, live) => Math.log(value) / Math.log(Math.max(2, live.k)) },
];

const move = (name, value) => {
  const field = document.querySelector(`#${name} input[type=number]`);
  Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, "value").set.call(field, value);
  for (const event of ["input", "change", "blur"]) field.dispatchEvent(new Event(event, { bubbles: true }));
};

// The vote of the nearest neighbors on a token, as bars.
const votesTable = (number, { known, settings }) => {
  const step = known.live.steps[number];
  const { weights } = votesOf(known.live, step, settings);
  const rows = [...weights.slice(0, NEAREST)].map((weight, one) => {
    const [id, token] = known.live.tokens[step.values[one]];
    return h("tr", { class: id === known.states[number].id ? "kl-chosen" : null },
      h("th", { scope: "row" }, visible(token)), h("td", {}, short(step.distances[one])), bar(weight, "knn"));
  });
  const heads = ["neighbor says", "distance", "weight"].map((one) => h("th", { scope: "col" }, one));
  return h("table", { class: "kl-bars" }, h("thead", {}, h("tr", {}, heads)), h("tbody", {}, rows));
};

// The place of the answer at which the neighbors disagree most: there the settings tell. The words
// that the memory changed come before the others.
const mostDivided = ({ live, own }) => {
  const { k, temperature } = live;
  const most = own.map((state, place) => {
    const { byToken } = votesOf(live, live.steps[place], { k, temperature });
    return isWord(state.text) && byToken.size ? Math.max(...byToken.values()) + 2 * (state.meaning !== "changed") : 4;
  });
  return most.indexOf(Math.min(...most));
};

// What the current settings make of that word.
const effect = (stop, view) => {
  const { known, settings } = view;
  const number = mostDivided(known);
  const { text, p, p_knn, p_lm, lmbda, best } = known.states[number];
  const said = `“${visible(text).trim()}”`;
  const sum = stop.name === "lmbda"
    ? `p(${said}) = ${short(lmbda)} × ${three(p_knn)} + ${short(1 - lmbda)} × ${three(p_lm)} = ${three(p)}`
    : `p_kNN(${said}) = ${three(p_knn)}, by ${count(Math.min(settings.k, known.live.steps[number].values.length), "neighbor")}`;
  return [h("p", { role: "status" }, h("b", {}, sum), best ? `. The likeliest word is “${visible(best.token).trim()}” now.` : "."),
    stop.name === "lmbda" ? chart(number, { known }) : votesTable(number, view)];
};

const endTour = () => {
  theTour.box?.remove();
  if (theTour.step !== null) document.querySelector("#reset")?.click();
  Object.assign(theTour, { step: null, box: null });
  document.getElementById("open-tour")?.focus({ preventScroll: true });
};
const drawTour = () => {
  const { box, view, step } = theTour;
  if (!box) return;
  const { live, side } = view.known ?? {};
  if (!live || view.stale) {
    const wait = document.documentElement.classList.contains("kl-writing") || !side?.done;
    box.querySelector(".kl-effect").replaceChildren(h("p", { class: "kl-hint" },
      wait ? "The model writes with a λ that does not change …" : "This answer cannot be mixed anew. Write another one."));
    return;
  }
  box.querySelector("input").value = STOPS[step].at(view.settings[STOPS[step].name], live);
  box.querySelector(".kl-value").textContent = short(view.settings[STOPS[step].name]);
  box.querySelector(".kl-effect").replaceChildren(...effect(STOPS[step], view));
};
const stopAt = (step) => {
  const { title, says, name, value } = STOPS[step];
  theTour.box?.remove();
  theTour.step = step;
  const slider = h("input", { type: "range", min: "0", max: "1", step: "0.01", "aria-label": title,
    oninput: ({ target }) => theTour.view.known?.live && move(name, value(Number(target.value), theTour.view.known.live)) });
  const go = (label, to) => button(label, () => stopAt(to), { class: "kl-chip" });
  theTour.box = h("section", { class: "kl-tour", role: "dialog", "aria-label": "A tour of the settings" },
    h("div", { class: "kl-head" }, h("h3", {}, title), h("p", {}, `${step + 1} of ${STOPS.length}`),
      button("×", endTour, { class: "kl-close", "aria-label": "End the tour" })),
    h("p", {}, says), h("p", { class: "kl-slider" }, slider, h("span", { class: "kl-value" })), h("div", { class: "kl-effect" }),
    h("p", {}, step ? go("Back", step - 1) : null, step < STOPS.length - 1 ? go("Next", step + 1)
      : button("End the tour", endTour, { class: "kl-chip" })));
  document.body.append(theTour.box);
  drawTour();
  // On a phone the tour covers the lower half.
  if (narrow()) document.querySelector("#answers .kl-side-knn, #answers")?.scrollIntoView({ block: "start" });
  slider.focus({ preventScroll: true });
};
const tour = () => {
  document.getElementById("open-generate").click();
  const { view } = theTour;
  if (!view.known?.live || view.stale) {
    // A λ that was moved holds at each word, so that the browser can mix it anew.
    document.querySelector("#switch input:not(:checked)")?.click();
    move("lmbda", FIRST_LAMBDA);
    press("#write");
  }
  stopAt(0);
};
document.addEventListener("click", (event) => event.target.closest?.("#open-tour") && tour());
document.addEventListener("keydown", (event) => event.key === "Escape" && theTour.box && endTour());
