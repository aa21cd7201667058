// Draws the panel of a word: its documents with their passages, the other candidates, and buttons
// that write the answer again in another way.

const BEFORE = 140, AFTER = 80, SOURCES = 3, CHARTS = 3;

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

const shareLine = (word, states) => {
  const mine = word.decisive.map((one) => states[one]);
  const piece = mine.length < word.tokens.length ? `“${mine.map((one) => one.text).join("").trim()}”` : null;
  const parts = [h("b", {}, percent(word.share)),
    piece ? ` of the probability of its piece ${piece} comes from the memory` : " of its probability comes from the memory"];
  const known = mine.find((one) => one.p !== null && one.p_lm !== null);
  if (known)
    parts.push(`; the model alone gave ${piece ?? (mine.length === 1 ? "it" : "its beginning")} ${short(known.p_lm)}, `
      + `with the memory ${short(known.p)}`);
  return [...parts, "."];
};

// The line of a document: its title, which opens it at a place, its datastore and its address.
const documentLine = (number, passage, place, view) => {
  const document = documentOf(view.known.side.trace, number);
  const title = h("b", {}, passage?.title ?? document.name);
  const read = (event) => view.readDocument(number, place, event.currentTarget);
  return h("div", { class: "kl-doc" },
    view.reads ? button(title, read, { class: "kl-open", title: place ? "Read the passage" : "Read the document" }) : title,
    h("span", { class: "kl-store" }, document.store), link(passage?.uri ?? document.uri));
};

// Says what the memory has in a word's place, and shows the passage that says it.
const objection = (word, view) => {
  if (!word.against) return null;
  const { token, document, entry, passage, length } = word.against;
  const said = h("b", {}, visible(token).trim());
  const line = ["The memory says ", said, " here. The words around it are the same in this passage:"];
  return h("div", { class: "kl-against" }, h("p", {}, line),
    document === null ? null : documentLine(document, passage, [entry, length], view),
    passage && h("blockquote", { dir: "auto" }, excerpt(passage)));
};

// The text of a passage around its word, in whole words.
const excerpt = ({ before, word, after }) => {
  const bare = word.trimStart();
  return [rendered(fromAWord(before)), word.slice(0, word.length - bare.length), h("mark", {}, bare), rendered(toAWord(after))];
};

// Finds a document's passage that contains the word. If the word is in a span, the span's passage
// is taken.
const passageFor = (word, number, span, trace) => {
  if (span && span.passage.document === number) {
    const whole = span.passage.word + span.passage.after;
    const wanted = span.words.map((one) => one.whole).join("");
    // The words of a span stand together in the document, also where the excerpt ends before them.
    if (whole.startsWith(wanted) || wanted.startsWith(whole)) return { passage: span.passage, marked: wanted, span };
  }
  const passage = passagesOf(word, trace).find((one) => one.document === number);
  return passage ? { passage, marked: word.whole, span: null } : null;
};

const quote = (word, { passage, marked, span }) => {
  const space = marked.slice(0, marked.length - marked.trimStart().length);
  const excerpt = passage.word + passage.after;
  const after = excerpt.length < marked.length ? " …" : toAWord(excerpt.slice(marked.length));
  const bare = marked.trimStart();
  let inner = bare;
  if (span && span.words.length > 1) {
    const before = sum(span.words.filter((one) => one.number < word.number).map((one) => one.whole.length));
    const at = before + word.space.length - space.length;
    inner = [bare.slice(0, at), h("b", {}, bare.slice(at, at + word.text.length)), bare.slice(at + word.text.length)];
  }
  return h("blockquote", { dir: "auto" }, rendered(fromAWord(passage.before)), space, h("mark", {}, inner), rendered(after));
};

const sourceItem = (word, one, view) => {
  const { trace } = view.known.side;
  const document = documentOf(trace, one.number);
  const found = passageFor(word, one.number, view.spanOf(word), trace);
  const place = found && [found.passage.entry, found.span ? found.span.tokens : word.tokens.length];
  const parts = [h("span", {}, `${percent(one.share)} of the word`)];
  if (found) {
    parts.push(h("span", {}, `weight ${percent(found.passage.weight)} of the vote`),
      h("span", {}, found.passage.matched ? `${found.passage.matched} tokens before it are the same`
        : `${view.metric === "l2" ? "distance" : "similarity"} ${short(found.passage.distance ?? 0)}`));
  }
  if (view.asks)
    parts.push(button("Write without it", () => view.without(document),
      { class: "kl-link kl-without", title: "The same answer, as if this document had never been read" }));
  return h("li", {}, documentLine(one.number, found?.passage, place, view), found && quote(word, found),
    h("div", { class: "kl-nums" }, parts));
};

const sources = (word, view) => {
  if (!word.against && word.tokens.every((one) => !view.known.states[one].lmbda))
    return h("p", {}, "λ is 0 here, so the memory has no part.");
  const all = documentsOf(word, view.known.states);
  // What hardly speaks for a word that a passage contradicts would only stand in that passage's place.
  const shown = all.slice(0, SOURCES).filter((one, place) => one.share >= (word.against ? LEAST : place && 0.01));
  if (!shown.length) {
    if (word.against) return null;
    const some = word.tokens.some((one) => view.known.states[one].documents.size);
    return h("p", {}, some ? "Its pieces come from different documents. None of them has the whole word."
      : "No neighbor voted for it: this word is the model’s own.");
  }
  const more = all.slice(shown.length);
  const rest = view.known.states[word.decisive[0]].rest;
  const number = more.length + rest[0];
  return [h("ol", { class: "kl-sources" }, shown.map((one) => sourceItem(word, one, view))),
    number ? h("p", { class: "kl-more" },
      `${count(number, "more document")}, ${percent(sum(more.map((one) => one.share)) + rest[1])}`) : null];
};

const bar = (share, kind) => {
  if (share === null) return h("td", {}, "–");
  const inner = h("i");
  inner.style.width = `${(Math.max(0, Math.min(1, share)) * 100).toFixed(1)}%`;
  return h("td", {}, h("span", { class: `kl-bar kl-${kind}` }, inner), h("span", {}, three(share)));
};

const chart = (number, view) => {
  const state = view.known.states[number];
  const row = (one) => {
    const mine = one.id === state.id;
    return h("tr", { class: mine ? "kl-chosen" : null },
      h("th", { scope: "row" }, visible(one.token)),
      bar(one.p, "mix"), bar(one.p_lm, "lm"), bar(state.lmbda ? one.p_knn : null, "knn"));
  };
  const heads = ["candidate", "p, together", "p_LM, model", "p_kNN, neighbors"];
  const table = h("table", { class: "kl-bars" },
    h("thead", {}, h("tr", {}, heads.map((one) => h("th", { scope: "col" }, one)))),
    h("tbody", {}, state.candidates.map(row)));
  return h("div", { class: "kl-scroll", tabindex: "0", role: "region", "aria-label": "Candidates" }, table);
};

// Says which word stands here under the current settings, or at which λ the word changes.
const turning = (word, view) => {
  const { live, states } = view.known;
  if (!live || !live.greedy) return null;
  const parts = [];
  const number = word.tokens.find((one) => states[one].best);
  if (number !== undefined) {
    const { best } = states[number];
    parts.push(h("b", {}, `With these settings it says “${visible(best.token).trim()}”. `));
  } else if (!view.gated) {
    for (const one of turnsOf(live, word.tokens[0], states[word.tokens[0]], view.settings)) {
      const at = "from" in one ? `From λ ${short(one.from)} on` : `Below λ ${short(one.below)}`;
      parts.push(`${at} it says “${visible(one.token).trim()}”. `);
    }
  }
  return parts.length ? h("p", { class: "kl-turns" }, parts) : null;
};

const panelOf = (word, view) => {
  const { trace } = view.known.side;
  const charts = word.tokens.slice(0, CHARTS).filter((one) => view.known.states[one].candidates.length);
  const span = view.spanOf(word);
  const comes = sources(word, view);
  const lmbda = view.known.states[word.tokens[0]].lmbda;
  return h("section", { class: "kl-panel", "aria-label": "Sources of a word" },
    h("div", { class: "kl-head" }, h("h3", {}, word.text), word.against ? null : h("p", {}, shareLine(word, view.known.states)),
      button("×", () => view.close(true), { class: "kl-close", "aria-label": "Close the sources" })),
    objection(word, view),
    h("p", { class: "kl-with" }, word.against ? [shareLine(word, view.known.states), " "] : null,
      span && span.words.length > 1 ? ["One passage says “", h("i", {}, span.words.map((one) => one.whole).join("").trim()), "”. "] : null,
      view.gated ? `The gate gave λ ${short(lmbda)} here.` : `λ ${short(lmbda)} here.`),
    turning(word, view),
    h("div", { class: "kl-cols" },
      comes && h("div", {}, h("h4", {}, "Where it comes from"), comes),
      h("div", {}, h("h4", {}, "What else might have stood here"),
        charts.length ? charts.map((one) => chart(one, view)) : h("p", {}, "Not known."))));
};
