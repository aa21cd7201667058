// Draws the documents beside an answer, with their shares as bars, and the drawer with a document.

const LISTED = 8;

const documentsAside = ({ known, readDocument }) => {
  const { trace } = known.side;
  if (!known.words.some(readable)) return null;
  const shares = trace.documents.map(([,,,, share], number) => ({ number, share }));
  shares.sort((one, two) => two.share - one.share);
  const shown = shares.slice(0, LISTED).filter((each, place) => each.share && each.share >= (place && 0.005));
  const others = trace.share - sum(shown.map((each) => each.share));
  const row = (name, share, attributes = {}) => h("li", {}, h(attributes.onclick ? "button" : "span", { class: "kl-part", ...attributes },
    h("span", { class: "kl-name" }, name), h("span", { class: "kl-share" }, percent(share)), h("span", { class: "kl-track" }, filled(share))));
  const items = shown.map(({ number, share }) => row(documentOf(trace, number).name, share, {
    type: "button", "data-document": number, onclick: () => readDocument(number, null),
  }));
  return h("aside", { class: "kl-docs", "aria-label": "Shares of the words" },
    h("h2", {}, "Where the words come from"),
    h("ol", {}, items, others >= 0.005 ? row("other documents", others) : null,
      row("the model itself", Math.max(0, 1 - trace.share), { "data-own": true })));
};

// The page has one drawer. All answers open their documents in it.
const theDrawer = { turn: 0, quoted: null };

// Asks the server for a document by an event of an answer's place. A passage may be quoted from it.
const openDocument = (trigger, name, quoted, request) => {
  Object.assign(theDrawer, { quoted, turn: theDrawer.turn + 1 });
  theDrawer.wait(name);
  trigger("read", { turn: theDrawer.turn, ...request });
};

const drawer = (element, props, watch) => {
  // The browser keeps the focus in an open dialog, closes it by Escape, and gives the focus back.
  const made = h("dialog", { class: "kl-drawer", "aria-label": "A document", onclose: () => made.replaceChildren(),
    onclick: ({ target }) => target === made && made.close() });
  element.querySelector(".kl-drawer-out").append(made);
  const closer = () => button("×", () => made.close(), { class: "kl-close", "aria-label": "Close the document" });
  theDrawer.wait = (name) => {
    made.replaceChildren(h("div", { class: "kl-head" }, h("h3", {}, name), closer()), h("p", { class: "kl-hint" }, "opening …"));
    made.showModal();
  };
  const show = () => {
    if (!props.value || !made.open) return;
    const found = JSON.parse(props.value);
    if (found.message) {
      made.lastElementChild.replaceWith(h("p", { class: "kl-notice kl-error" }, found.message));
      return;
    }
    // Of a passage that was read only the sentence is marked that the answer quotes.
    const pieces = found.pieces.flatMap(([text, marked, ...where], place) => {
      const { quoted } = theDrawer;
      const first = quoted?.text && marked ? text.indexOf(quoted.text) : -1;
      if (first < 0) return [[text, marked, place, ...where]];
      const last = first + quoted.text.length;
      return [[text.slice(0, first), false], [text.slice(first, last), true, place, quoted.title.slice(found.title.length + 2), quoted.uri], [text.slice(last), false]];
    });
    const whole = h("div", { class: "kl-whole" }, rendered(pieces));
    const marks = pieces.filter(([, marked]) => marked).map(([, , place, name, uri], number) =>
      ({ all: whole.querySelectorAll(`[data-mark="${number}"]`), name, uri, first: place === found.opened })).filter(({ all }) => all.length);
    let at = Math.max(0, marks.findIndex((one) => one.first));
    const told = h("span", { role: "status" });
    const go = (place) => {
      at = (place + marks.length) % marks.length;
      marks.forEach(({ all }, one) => all.forEach((mark) => mark.classList.toggle("kl-here", one === at)));
      const { name, uri } = marks[at];
      told.replaceChildren(...[name ? h("b", {}, `${name}, `) : "", `place ${at + 1} of ${marks.length} `, link(uri)].filter(Boolean));
      marks[at].all[0].scrollIntoView({ block: "center" });
    };
    const cut = (yes) => (yes ? h("p", { class: "kl-hint" }, "… the document goes on …") : null);
    made.replaceChildren(
      h("div", { class: "kl-head" }, h("h3", {}, found.title), marks.length ? null : link(found.uri), closer()),
      h("div", { class: "kl-places" }, told, marks.length > 1
        ? [button("previous place", () => go(at - 1), { class: "kl-link" }), button("next place", () => go(at + 1), { class: "kl-link" })] : null),
      h("div", { class: "kl-body", dir: "auto", tabindex: "0" }, cut(found.cut[0]), whole, cut(found.cut[1])),
    );
    made.querySelector(".kl-close").focus();
    if (marks.length) go(at);
  };
  watch("value", show);
};
