// Lets a visitor share answers as links, and keeps the last one.

// { names: of the settings in a form, bytes, files, suffixes: of uploads }
let server = { names: [], bytes: Infinity, files: Infinity, suffixes: [] };

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
const keptLast = () => (address.get("q") ? null : sessionStorage.getItem(LAST));
// Returns the values of the form that the kept answer had. A visitor's own text is gone with the page.
const asBefore = (now) => {
  const values = JSON.parse(keptLast() ?? "{}").asked?.values;
  if (!values) return now;
  const size = server.names.length + 2;
  return [values[size], ...(values[0].includes("your text") ? now.slice(1) : values.slice(0, size))];
};

// Returns the values of the form that the address asks for: prompt, datastores, strength, settings.
const fromLink = (...now) => {
  const prompt = address.get("q");
  linked.kind = ["q", "explain", "ask"].find((name) => address.get(name));
  if (!linked.kind) return asBefore(now);
  if (prompt) linked.kind = "write";
  linked.run = true;
  linked.word = given("word", null);
  const asked = address.getAll("store");
  const strength = server.names.some((name) => address.has(name)) ? "fixed" : "own";
  return [prompt || now[0], asked.length ? asked : now[1], strength, ...server.names.map((name, place) => given(name, now[place + 3]))];
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

// A link that makes an answer again; null for one that nobody else could open.
const LINK = { class: "kl-link kl-again", target: "_blank" };
const linkTool = (view) => (view.known.side.trace && linkable(view.data)
  ? h("a", { href: linkOf(view), ...LINK }, "Link to this answer") : null);
