// Lets a visitor share answers, as links and as text with footnotes.

// { stores: each datastore's own settings, names: of the settings, bytes, files, suffixes: of uploads }
let server = { stores: {}, names: [], bytes: Infinity, files: Infinity, suffixes: [] };
// The names of the settings among the values of a form.
let names = ["lmbda", "k", "temperature"];

// Returns the settings of the first datastore that is chosen. A visitor's text has those of the first.
const own = (stores) => [...(server.stores[stores?.[0]] ?? Object.values(server.stores)[0] ?? [])];

// The request in the page's address: to write ("q"), to explain or to ask. Its word is opened once
// its answer is finished.
const address = new URLSearchParams(location.search);
const linked = { kind: null, word: null, run: false };

const given = (name, now) => {
  const value = address.get(name);
  return value !== null && value !== "" && Number.isFinite(Number(value)) ? Number(value) : now;
};
// The browser's tab keeps the last whole answer, so that a reload does not lose it. The server keeps none.
const LAST = "knn-logits answer";
const keepLast = (answer) => {
  try {
    sessionStorage.setItem(LAST, answer);
  } catch {
    sessionStorage.removeItem(LAST); // there is no room for it
  }
};
const keptLast = () => (address.get("q") ? null : sessionStorage.getItem(LAST));
// Returns the values of the form that the kept answer had. A visitor's own text is gone with the page.
const asBefore = (now) => {
  const values = JSON.parse(keptLast() ?? "{}").asked?.values;
  if (!values) return now;
  const size = names.length + 1;
  return [values[size], ...(values[0].includes("your text") ? now.slice(1) : values.slice(0, size))];
};

// Returns the values of the form that the address asks for: prompt, datastores, settings.
const fromLink = (...now) => {
  const prompt = address.get("q");
  linked.kind = ["q", "explain", "ask"].find((name) => address.get(name));
  if (!linked.kind) return asBefore(now);
  if (prompt) linked.kind = "write";
  linked.run = true;
  linked.word = given("word", null);
  const asked = address.getAll("store");
  const chosen = asked.length ? asked : now[1];
  const usual = own(chosen);
  return [prompt || now[0], chosen, ...names.map((name, place) => given(name, usual[place]))];
};
const runLink = () => {
  if (!linked.run) return;
  linked.run = false;
  if (linked.kind === "ask") {
    document.getElementById("open-chat")?.click();
    theChat.askAll(address.getAll("ask"));
  } else if (linked.kind === "write") {
    document.getElementById("open-generate").click();
    document.querySelector("#write").click();
  } else {
    document.getElementById("open-explain").click();
    fill("#explain-text textarea", address.get("explain"));
    press("#explain");
  }
};
// For others than the visitor there is no document of the visitor.
const linkable = ({ kind, asked }) => !asked.values?.[0].includes("your text")
  && ["write", "explain"].includes(kind);
const addressWith = (parameters) => `${location.origin}${location.pathname}?${new URLSearchParams(parameters)}`;
const linkOf = (view) => {
  const { kind, asked } = view.data;
  const { stores, settings, rest } = formOf(asked.values);
  const parameters = new URLSearchParams({ [kind === "write" ? "q" : "explain"]: rest[0] });
  stores.forEach((one) => parameters.append("store", one));
  for (const [name, value] of Object.entries(settings)) parameters.set(name, value);
  if (view.opened !== null) parameters.set("word", view.opened);
  return addressWith(parameters);
};

// Returns the text with a footnote number after each passage, and the documents below.
const withFootnotes = (view) => {
  const { known } = view;
  const { trace } = known.side;
  const numbers = new Map();
  let text = known.side.prompt ?? "";
  let place = 0;
  known.spans.forEach((span, at) => {
    text += known.words.slice(place, span.last + 1).map((one) => one.whole).join("");
    place = span.last + 1;
    const { document } = span.passage;
    if (!numbers.has(document)) numbers.set(document, numbers.size + 1);
    const next = known.spans[at + 1];
    if (!next || next.passage.document !== document || next.first !== place) text += ` [${numbers.get(document)}]`;
  });
  text += known.words.slice(place).map((one) => one.whole).join("");
  const notes = [...numbers].map(([number, note]) => {
    const { name, store, uri } = documentOf(trace, number);
    const address = addressOf(uri);
    return `[${note}] ${name} (${store})${address?.startsWith("http") ? `, ${address}` : ""}`;
  });
  return clean(notes.length ? `${text}\n\n${notes.join("\n")}\n` : text);
};

const copy = async (text, opener) => {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // A page without permission to use the clipboard copies through a text field.
    const field = h("textarea", { class: "kl-sr" });
    field.value = text;
    opener.after(field);
    field.select();
    document.execCommand("copy");
    field.remove();
  }
  const label = opener.textContent;
  opener.textContent = "copied";
  setTimeout(() => { opener.textContent = label; }, 1500);
};

const toolsOf = (view) => {
  const { data } = view;
  const main = data.sides.knn ?? data.sides.text;
  if (!main?.trace) return null;
  const tool = (label, run, name) => button(label, run, { class: `kl-link ${name}` });
  return h("div", { class: "kl-tools" },
    linkable(data) ? tool("Copy a link", (event) => copy(linkOf(view), event.currentTarget), "kl-copy-link") : null,
    tool("Copy with sources", (event) => copy(withFootnotes(view), event.currentTarget), "kl-copy"));
};
