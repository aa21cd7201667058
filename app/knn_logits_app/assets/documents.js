// Draws the documents beside an answer, with their shares as bars, and the drawer with a document.

const LISTED = 8;

const mean = (numbers) => (numbers.length ? sum(numbers) / numbers.length : 0);

// Returns the share of each document in words, which is the mean over the words.
const partsOf = (words, states) => {
  const parts = new Map();
  for (const word of words)
    for (const { number, share } of documentsOf(word, states))
      parts.set(number, (parts.get(number) ?? 0) + share / words.length);
  return [...parts].map(([number, share]) => ({ number, share })).sort((one, two) => two.share - one.share);
};

const documentsAside = (view) => {
  const { known } = view;
  // A word of probability 0 has no parts.
  const readables = known.words.filter((each) => readable(each) && each.tokens.some((at) => known.states[at].p !== 0));
  const words = readables.length ? readables : known.words;
  const all = partsOf(words, known.states);
  const shown = all.slice(0, LISTED).filter((each, place) => each.share >= (place && 0.005));
  const rest = all.slice(shown.length);
  // The server lists the first documents of each word, and only counts the share of the others.
  const unlisted = words.map((each) => known.states[each.decisive[0]].rest);
  const others = sum(rest.map((each) => each.share)) + mean(unlisted.map(([, share]) => share));
  const more = unlisted.some(([number]) => number) ? "more documents" : rest.length && count(rest.length, "more document");
  const row = (name, share, attributes = {}) => {
    const inner = h("i");
    inner.style.width = `${(Math.min(1, share) * 100).toFixed(1)}%`;
    return h("li", {}, h(attributes.onclick ? "button" : "span", { class: "kl-part", ...attributes },
      h("span", { class: "kl-name" }, name), h("span", { class: "kl-share" }, percent(share)),
      h("span", { class: "kl-track" }, inner)));
  };
  const items = shown.map(({ number, share }) => row(documentOf(known.side.trace, number).name, share, {
    type: "button", "data-document": number,
    onclick: (event) => view.readDocument(number, null, event.currentTarget),
    onmouseenter: () => view.light(number), onmouseleave: () => view.light(null),
    onfocus: () => view.light(number), onblur: () => view.light(null),
  }));
  const own = 1 - mean(words.map((each) => each.share));
  return h("aside", { class: "kl-docs", "aria-label": "Documents" },
    h("h2", {}, "Documents"),
    h("ol", {}, items, more ? h("li", { class: "kl-more" }, `${more}, ${percent(others)}`) : null,
      row("the model itself", Math.max(0, own), { "data-own": true })));
};

// The page has one drawer. All answers open their documents in it.
const theDrawer = { turn: 0, opener: null, quoted: null };

// Asks the server for a document by an event of an answer's place. A passage may be quoted from it.
const openDocument = (trigger, opener, name, quoted, request) => {
  Object.assign(theDrawer, { opener, quoted, turn: theDrawer.turn + 1 });
  theDrawer.wait(name);
  trigger("read", { turn: theDrawer.turn, ...request });
};

const drawer = (element, props, watch) => {
  const out = element.querySelector(".kl-drawer-out");
  const close = () => {
    out.replaceChildren();
    document.documentElement.classList.remove("kl-drawn");
    theDrawer.opener?.focus();
    theDrawer.opener = null;
  };
  // Escape closes it from everywhere, before what else listens, and Tab stays in it.
  addEventListener("keydown", (event) => {
    const inside = [...out.querySelectorAll("button, a, [tabindex='0']")];
    if (!inside.length) return;
    const at = inside.indexOf(document.activeElement), last = inside.length - 1;
    if (event.key === "Escape") close();
    else if (event.key === "Tab" && (at < 0 || at === (event.shiftKey ? 0 : last))) inside[event.shiftKey ? last : 0].focus();
    else return;
    event.stopPropagation();
    event.preventDefault();
  }, true);
  const frame = (...children) => {
    const made = h("section", { class: "kl-drawer", role: "dialog", "aria-label": "A document", tabindex: "-1" }, children);
    out.replaceChildren(made);
    document.documentElement.classList.add("kl-drawn");
    return made;
  };
  const closer = () => button("×", close, { class: "kl-close", "aria-label": "Close the document" });
  theDrawer.wait = (name) =>
    frame(h("div", { class: "kl-head" }, h("h3", {}, name), closer()), h("p", { class: "kl-hint" }, "opening …"))
      .querySelector(".kl-close").focus();
  const show = () => {
    if (!props.value || !theDrawer.opener) return;
    const found = JSON.parse(props.value);
    if (found.message) {
      frame(h("div", { class: "kl-head" }, closer()), h("p", { class: "kl-notice kl-error" }, found.message));
      return;
    }
    const marks = [];
    // Of a passage that was read only the sentence is marked that the answer quotes.
    const pieces = found.pieces.flatMap(([text, marked, ...where], place) => {
      const { quoted } = theDrawer;
      const first = quoted?.text && marked ? text.indexOf(quoted.text) : -1;
      if (first < 0) return [[text, marked, place, ...where]];
      const last = first + quoted.text.length;
      return [[text.slice(0, first), false], [text.slice(first, last), true, place, quoted.title.slice(found.title.length + 2), quoted.uri], [text.slice(last), false]];
    });
    const parts = pieces.map(([text, marked, place, name, uri]) => {
      if (!marked) return rendered(text);
      const bare = text.trim(), start = text.indexOf(bare);
      const mark = h("mark", { tabindex: "-1" }, rendered(bare));
      marks.push({ mark, name, uri, first: place === found.opened });
      return [text.slice(0, start), mark, text.slice(start + bare.length)];
    });
    let at = Math.max(0, marks.findIndex((one) => one.first));
    const told = h("span", { role: "status" });
    const go = (place) => {
      at = (place + marks.length) % marks.length;
      marks.forEach(({ mark }, one) => mark.classList.toggle("kl-here", one === at));
      const { name, uri } = marks[at];
      told.replaceChildren(...[name ? h("b", {}, `${name}, `) : "", `place ${at + 1} of ${marks.length} `, link(uri)].filter(Boolean));
      marks[at].mark.scrollIntoView({ block: "center" });
    };
    const cut = (yes) => (yes ? h("p", { class: "kl-hint" }, "… the document goes on …") : null);
    frame(
      h("div", { class: "kl-head" }, h("h3", {}, found.title), marks.length ? null : link(found.uri), closer()),
      h("div", { class: "kl-places" }, told, marks.length > 1
        ? [button("previous place", () => go(at - 1), { class: "kl-link" }), button("next place", () => go(at + 1), { class: "kl-link" })] : null),
      h("div", { class: "kl-body", dir: "auto", tabindex: "0" }, cut(found.cut[0]), h("div", { class: "kl-whole" }, parts), cut(found.cut[1])),
    ).querySelector(".kl-close").focus();
    if (marks.length) go(at);
  };
  watch("value", show);
};
