// Sets the controls to the datastores' own settings.

// By model: its datastores' own settings, and those that are chosen at first.
let libraries = {};
// The names of the settings among the values of a form.
let names = ["lmbda", "k", "temperature"];

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
  return [...mine.stores[first]];
};
const ownOfModel = (model) => {
  const { mine } = memoryOf(model);
  const titles = Object.keys(mine.stores);
  const boxes = { __type__: "update", choices: titles.map((one) => [one, one]), value: mine.chosen };
  return [boxes, ...own(model)];
};
