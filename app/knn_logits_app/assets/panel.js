// Draws the panel of a word: its documents with their passages, the other candidates, and buttons
// that write the answer again in another way.

const BEFORE = 140, AFTER = 80, SOURCES = 3;

// Shortens the text before a word so that it begins with a whole word.
const fromAWord = (before, most = BEFORE) => {
  const part = before.slice(-most);
  const space = part.indexOf(" ");
  const opens = before.length <= most && (!part || /^\p{Lu}/u.test(part));
  return opens || space < 0 ? part : `… ${part.slice(space + 1)}`;
};
// Shortens the text after a word so that it ends with a whole word.
const toAWord = (after, most = AFTER) => {
  const part = after.slice(0, most);
  const space = part.lastIndexOf(" ");
  const closes = after.length <= most && /[.!?]$/.test(part.trimEnd());
  if (closes || !part.trim()) return part;
  return space < 0 ? `${part}…` : `${part.slice(0, space)} …`;
};

// Names what the numbers of a word's panel are of.
const partOf = (word, states) => (word.tokens.length > 1 ? `its part “${visible(states[word.piece].text).trim()}”` : "the word");

const shareLine = (word, states) => {
  const { share, p, p_lm: alone } = states[word.piece];
  return [h("b", {}, percent(share)), ` of the chance of ${partOf(word, states)} comes from the memory`,
    p !== null && alone !== null ? `: with it the chance is ${percent(p)}, and with the model alone ${percent(alone)}.` : "."];
};

// The line of a document: its title, which opens it at a place, its datastore and its address.
const documentLine = (number, passage, place, view) => {
  const document = documentOf(view.known.side.trace, number);
  const title = h("b", {}, passage?.title ?? document.name);
  const read = () => view.readDocument(number, place);
  return h("div", { class: "kl-doc" },
    view.reads ? button(title, read, { class: "kl-open", title: "Read the passage" }) : title,
    h("span", { class: "kl-store" }, document.store), link(passage?.uri ?? document.uri));
};

// The text of a passage around its word, in whole words.
const excerpt = ({ before, word, after }) => {
  const bare = word.trimStart();
  const space = word.slice(0, word.length - bare.length);
  return h("blockquote", { dir: "auto" }, rendered([[fromAWord(before) + space], [bare, true], [toAWord(after)]]));
};

// Says what the memory has in a word's place, and shows the passage that says it.
const objection = (word, view) => {
  if (!word.against) return null;
  const { token, passage } = word.against;
  const line = ["A passage says ", h("b", {}, visible(token).trim()), " in a sentence like this one:"];
  return h("div", { class: "kl-against" }, h("p", {}, line),
    placeOf(word.against, view), passage && excerpt(passage));
};
// The line of the document that has other words.
const placeOf = ({ document, entry, passage, length }, view) => documentLine(document.document, passage, [entry, length], view);

// The passage of a document that has the word, or else one that has a piece of it.
const shownOf = (word, { number }, { states }) => {
  const ofIt = (passage) => passage.document === number;
  const whole = passagesOf(word, states).find(ofIt);
  if (!whole) return word.decisive.flatMap((one) => states[one].neighbors).find(ofIt);
  return { ...whole, word: word.whole, after: (whole.word + whole.after).slice(word.whole.length), length: word.tokens.length };
};

const sourceItem = (word, one, view) => {
  const { trace } = view.known.side;
  const found = shownOf(word, one, view.known);
  return h("li", {}, documentLine(one.number, found, [found.entry, found.length ?? 1], view),
    excerpt(found),
    h("div", { class: "kl-nums" }, h("span", {}, `${percent(one.share)} of ${partOf(word, view.known.states)}`),
      view.asks ? button("Write without it", () => view.without(documentOf(trace, one.number)),
        { class: "kl-link kl-without", title: "The same answer, as if this document had never been read" }) : null));
};

const sources = (word, view) => {
  if (!word.against && word.tokens.every((one) => !view.known.states[one].lmbda))
    return h("p", {}, "The memory has no part here: its strength is 0%.");
  const all = word.meaning === "pieces" ? [] : documentsOf(word, view.known.states).filter((one) => shownOf(word, one, view.known));
  // What hardly speaks for a word that a passage contradicts would only stand in that passage's place.
  const shown = all.slice(0, SOURCES).filter((one, place) => one.share >= (word.against ? LEAST : place && 0.01));
  if (!shown.length) {
    if (word.against) return null;
    const some = word.tokens.some((one) => view.known.states[one].documents.size);
    return h("p", {}, some ? "No document gave the whole word, only pieces of it."
      : "No passage speaks for it: this word is the model’s own.");
  }
  const others = view.known.states[word.piece].share - sum(shown.map((one) => one.share));
  return [h("ol", { class: "kl-sources" }, shown.map((one) => sourceItem(word, one, view))),
    others >= 0.005 ? h("p", { class: "kl-nums" }, `other documents, ${percent(others)}`) : null];
};

const bar = (share, kind) => (share === null ? h("td", {}, "–")
  : h("td", {}, h("span", { class: `kl-bar kl-${kind}` }, filled(share)), h("span", {}, percent(share))));

const chart = (number, view) => {
  const state = view.known.states[number];
  const row = (one) => h("tr", {}, h("th", { scope: "row" }, visible(one.token)),
    bar(one.p, "mix"), bar(one.p_lm, "lm"), bar(state.lmbda ? one.p_knn : null, "knn"));
  const heads = ["word", "together", "model alone", "memory alone"];
  return h("table", { class: "kl-bars" },
    h("thead", {}, h("tr", {}, heads.map((one) => h("th", { scope: "col" }, one)))),
    h("tbody", {}, state.candidates.map(row)));
};

// A strength of the memory, the λ of the papers.
const strength = (lmbda) => `${short(lmbda * 100)}%`;

// Says at which strength another word stands here.
const turning = ({ turns }) => turns?.length ? h("p", { class: "kl-turns" }, turns.map(([edge, lmbda, text]) =>
  `${edge === "from" ? "From" : "Below"} a memory strength of ${strength(lmbda)}${edge === "from" ? " on" : ""} it says “${visible(text).trim()}”. `)) : null;

const panelOf = (word, view) => {
  const { trace } = view.known.side;
  const span = view.known.spans.find((one) => one.first <= word.number && word.number <= one.last);
  const comes = sources(word, view);
  const { lmbda, candidates } = view.known.states[word.piece];
  return h("section", { class: "kl-panel", "aria-label": "Sources of a word" },
    h("div", { class: "kl-head" }, h("h3", {}, word.text), word.against ? null : h("p", {}, shareLine(word, view.known.states)),
      button("×", view.close, { class: "kl-close", "aria-label": "Close the sources" })),
    objection(word, view),
    h("p", { class: "kl-with" }, word.unlike ? "Its source reads unlike this sentence, and may be about something else. " : null,
      span && span.words.length > 1 && !word.unlike ? ["One passage says “", h("i", {}, span.words.map((one) => one.space + one.text).join("").trim()), "”. "] : null,
      `Memory strength: ${strength(lmbda)}${view.known.side.gated ? `, chosen for ${partOf(word, view.known.states)}` : ""}.`),
    turning(trace.tokens[word.piece]),
    h("div", { class: "kl-cols" },
      comes && h("div", {}, h("h4", {}, word.against ? "The same word elsewhere" : "Where it comes from"), comes),
      h("div", {}, h("h4", {}, "What else might have stood here"),
        candidates.length ? chart(word.piece, view) : h("p", {}, "Not known."))));
};
