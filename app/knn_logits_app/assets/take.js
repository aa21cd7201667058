// Lets a visitor share answers as links, and keeps the last one.

// { names: of the settings in a form, stores: of all visitors, bytes, suffixes: of uploads }
let server = { names: [], stores: [], bytes: Infinity, suffixes: [] };

// The request in the page's address: to write ("q"), to explain or to ask. Its word is opened once
// its answer is finished.
const address = new URLSearchParams(location.search);
const linked = { kind: null, word: null, run: false };

const given = (name, now) => (address.get(name) && Number.isFinite(Number(address.get(name))) ? Number(address.get(name)) : now);
// The browser's tab keeps the last whole answer, so that a reload does not lose it. The server keeps none.
const LAST = "knn-logits answer";
// The name of a visitor's own datastore.
const MINE = "your text";
const keptLast = () => (address.get("q") ? null : sessionStorage.getItem(LAST));
// It also keeps the tab of the page that is open, what was typed, and the settings.
const PAGE = "knn-logits page";
const boxes = () => [...document.querySelectorAll(".kl-tab textarea, #tab-generate input")];
const keepPage = () => keepAs(PAGE, JSON.stringify({ values: form?.values, before: theChat.before, texts: boxes().map((one) => (one.type === "checkbox" ? one.checked : one.value)),
  tab: document.querySelector("[role=tab][aria-selected=true]").id }));
const keptPage = () => JSON.parse(sessionStorage.getItem(PAGE) ?? '{ "texts": [] }');

// Returns the values of the form that the address asks for: prompt, datastores, strength, settings.
const fromLink = (...now) => {
  const prompt = address.get("q");
  linked.kind = ["q", "explain", "ask"].find((name) => address.get(name));
  if (!linked.kind) {
    const { values, before } = keptPage();
    // A visitor's own text is gone with the page, and a server that was started anew may have others.
    const stores = [values?.[0], before].map((all) => (all ?? []).filter((one) => server.stores.includes(one))).find((all) => all.length);
    return stores ? [now[0], stores, ...values.slice(1)] : now;
  }
  if (prompt) linked.kind = "write";
  linked.run = true;
  linked.word = given("word", null);
  const asked = address.getAll("store");
  const strength = server.names.some((name) => address.has(name)) ? "fixed" : "own";
  return [prompt || now[0], asked.length ? asked : now[1], strength, ...server.names.map((name, place) => given(name, now[place + 3]))];
};
// Does what the address asks for, or else shows the page as it was left.
const runLink = () => {
  const { tab, texts } = keptPage();
  if (theChat.lost) theChat.complain("The page was loaded again, without your documents: attach them again.");
  addEventListener("pagehide", keepPage);
  if (!linked.kind) {
    document.getElementById(tab)?.click();
    texts.forEach((text, place) => fill(boxes()[place], text));
  }
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
    fill(document.querySelector("#explain-text textarea"), address.get("explain"));
    press("#explain");
  }
};
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

// A link that makes an answer again; null for one that nobody else could open, as of a visitor's own text.
const LINK = { class: "kl-link kl-again", target: "_blank" };
const linkTool = (view) => {
  const { kind, asked } = view.data;
  const can = view.known.side.trace && ["write", "explain"].includes(kind) && !asked.values[0].includes(MINE);
  return can ? h("a", { href: linkOf(view), ...LINK }, "Link to this answer") : null;
};
