// Sets the controls to the datastores' own settings, of which some are for writing and others for
// scoring a text that exists.

// By model: its datastores' own settings, and those that are chosen at first.
let libraries = {};
// The names of the settings among the values of a form.
let names = ["lmbda", "k", "temperature"];

// What the tab that is open uses.
const SCORES = ["open-explain", "open-evaluate"];
const purpose = () => (SCORES.includes(document.querySelector("[role=tab][aria-selected=true]")?.id) ? "scoring" : "writing");
// The purpose whose settings the controls show.
let shownFor = "writing";
const isTurned = () => purpose() !== shownFor && Object.keys(libraries).length > 0;

// Returns a model, and the datastore whose settings hold: the first one that is chosen.
const memoryOf = (model, stores) => {
  const mine = libraries[model] ?? Object.values(libraries)[0];
  const titles = Object.keys(mine.stores);
  const chosen = stores?.[0];
  const first = titles.includes(chosen) ? chosen : titles[0];
  return { mine, first };
};
const own = (model, stores) => {
  const { mine, first } = memoryOf(model, stores);
  shownFor = purpose();
  return [...mine.stores[first][shownFor]];
};
const ownOfModel = (model) => {
  const { mine } = memoryOf(model);
  const titles = Object.keys(mine.stores);
  const boxes = { __type__: "update", choices: titles.map((one) => [one, one]), value: mine.chosen };
  return [boxes, ...own(model)];
};
// Returns the settings for a purpose. Those that a visitor has moved stay.
const settingsFor = (next, model, stores, values) => {
  const { mine, first } = memoryOf(model, stores);
  const [before, after] = [shownFor, next].map((one) => mine.stores[first][one]);
  shownFor = next;
  return after.map((value, place) => (values[place] === before[place] ? value : values[place]));
};
const forTab = (model, stores, ...values) => settingsFor(purpose(), model, stores, values);
