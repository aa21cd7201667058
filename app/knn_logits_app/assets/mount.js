// Mounts the place of an answer. It draws the answers of the server and handles clicks on them.

// Names the values of a form: datastores, settings that are fixed, and others.
const formOf = ([stores, strength, ...others]) => ({
  stores, rest: others.slice(server.names.length),
  settings: strength === "own" ? {} : Object.fromEntries(server.names.map((name, place) => [name, others[place]])),
});
// The current values of the controls.
let form = null;
const views = [];
const controls = (...values) => {
  form = { ...formOf(values), values };
  views.forEach((view) => view.follow());
};

const know = (known, ...values) => {
  server = known;
  controls(...values);
};

const mount = (element, props, trigger, watch) => {
  const out = element.querySelector(".kl-out");
  const view = { data: null, known: null, opened: null, asks: false, reads: Boolean(trigger), before: null, turn: 0 };
  const writes = Boolean(element.closest("#answers"));
  const panel = `${element.closest("[id]")?.id || "answer"}-${views.length}-panel`;
  const words = () => [...out.querySelectorAll(".kl-w[role=button]")];
  const elementOf = (number) => out.querySelector(`.kl-w[data-word="${number}"]`);

  // Says that the controls have moved since the answer was written.
  const notice = () => {
    if (!form || !view.data.asked?.values) return null;
    const asked = formOf(view.data.asked.values);
    if (JSON.stringify([form.stores, form.settings]) === JSON.stringify([asked.stores, asked.settings])) return null;
    const [label, pressed] = view.data.kind === "explain" ? ["Explain again", "#explain"] : ["Write again", "#write"];
    // An answer from other documents is hidden while only the visitor's own are chosen.
    const other = form.stores.join() === MINE && !asked.stores.includes(MINE);
    return h("p", { class: other ? "kl-stale kl-other" : "kl-stale", role: "status" }, "These words do not show the current settings. ",
      button(label, () => press(pressed), { class: "kl-link" }));
  };

  // Lists where passages say otherwise. Words of a prompt have no panel that could be opened.
  const differences = () => {
    const { contradictions } = view.known.side.trace;
    const opening = (words, token) => {
      const word = token !== null && view.known.words.find((one) => one.tokens.includes(token));
      return word ? button(words, () => view.opened === word.number || open(word.number), { class: "kl-link" }) : h("b", {}, words);
    };
    return contradictions.length ? h("ul", { class: "kl-differences", "aria-label": "Differences" }, contradictions.map(({ words, token, by_memory: against }) =>
      h("li", {}, h("span", {}, view.data.kind === "explain" ? "Your text: " : "This text: ", opening(visible(words), token),
        " · Source: ", h("b", {}, visible(against.token).trim())), placeOf(against, view)))) : null;
  };

  const draw_panel = () => {
    const place = out.querySelector(".kl-panels");
    if (!place) return;
    place.replaceChildren(...(view.opened === null ? [] : [panelOf(view.known.words[view.opened], view)]));
    words().forEach((one) => one.setAttribute("aria-expanded", String(Number(one.dataset.word) === view.opened)));
    out.querySelector(".kl-again")?.setAttribute("href", linkOf(view)); // which opens the same word
  };

  view.follow = () => {
    out.querySelector(":scope > .kl-error")?.remove(); // other settings may be right
    out.querySelector(".kl-notes")?.replaceChildren(...[view.known.side.trace && notice()].filter(Boolean));
  };

  const open = (number) => {
    view.opened = view.opened === number ? null : number;
    draw_panel();
    // In a narrow window the sources are a sheet over the lower part, so the word is moved above it.
    if (view.opened !== null && sheets()) elementOf(number)?.scrollIntoView({ block: "start", behavior: "smooth" });
  };
  view.close = () => {
    const was = view.opened;
    if (was === null) return;
    open(was);
    elementOf(was)?.focus();
  };
  // Opens a whole document at a place, and marks the places of the answer's other words in it.
  view.readDocument = (number, place) => {
    const { store, document, name } = documentOf(view.known.side.trace, number);
    const places = view.known.spans.filter((one) => one.passage.document === number)
      .map((one) => [one.passage.entry, one.tokens]);
    openDocument(trigger, name, null,
      { store, document, places: place ? [place, ...places] : places });
  };

  // Requests the answer as if a document had never been read.
  view.without = ({ document, name }) => {
    const { values, without } = view.data.asked;
    reading("write", 1);
    trigger("ask", { values, without: [...(without ?? []), document], named: name.slice(0, 200) });
  };

  const draw = (data) => {
    const known = Object.fromEntries(Object.entries(data.sides).map(([name, side]) => [name, read(side, data.kind)]));
    if (data.kind === "without" && view.before) known.old = read(view.before.sides.knn);
    const name = ["knn", "text", "lm"].find((one) => known[one]);
    const main = known[name], other = known.lm ?? known.old;
    const traced = Boolean(main.side.trace);
    Object.assign(view, { data, known: main, opened: null, asks: writes && traced });
    let same = null, otherSame = null;
    if (other && other !== main && other.side.done && main.side.done) {
      const [texts, mine] = [other, main].map((one) => one.words.map((word) => word.text));
      [otherSame, same] = [texts.map((one) => mine.includes(one)), mine.map((one) => texts.includes(one))];
    }
    if (traced) {
      const asked = linked.kind === data.kind && main.words[linked.word]?.text ? linked.word : null;
      // A sheet with the sources of a word would hide the answer.
      view.opened = asked ?? (sheets() ? null : firstOpened(main, data.kind));
      if (data.kind === linked.kind && !linked.run) linked.word = null;
    }
    const columns = [];
    if (known.lm && known.lm !== main) columns.push(column("lm", known.lm, { same: otherSame }));
    if (known.old) {
      const back = button("Back to it", () => draw(view.before), { class: "kl-link kl-back" });
      columns.push(column("old", { ...known.old, spans: [] }, { same: otherSame, coloured: true, tools: back }));
    }
    columns.push(column(name, main, {
      title: data.kind === "without" ? `Without “${data.named}”` : undefined,
      same, open: traced, panel, coloured: main.side.knn, tools: trigger ? linkTool(view) : null,
    }));
    const beside = traced ? h("div", { class: "kl-right" }, documentsAside(view), h("div", { class: "kl-panels", id: panel })) : null;
    const grid = h("div", { class: `kl-grid kl-has-${columns.length}${traced ? " kl-beside" : ""}` }, columns, beside);
    const parts = main.side.knn ? [
      h("p", { class: "kl-headline", role: "status" }, traced ? headline(data, main, same, same && other) : null),
      h("div", { class: "kl-notes" }, traced ? notice() : null), traced ? differences() : null, grid, legend(data.kind),
    ] : [grid];
    out.replaceChildren(...parts.filter(Boolean));
    draw_panel();
    out.dataset.done = String(Object.values(data.sides).every((side) => side.done));
    out.setAttribute("aria-busy", String(out.dataset.done === "false"));
  };

  const show = (answer, isNew) => {
    if (!answer) return;
    const data = JSON.parse(answer);
    // A newer request has replaced the one of this frame.
    if ((data.asked?.turn ?? view.turn) < view.turn) return;
    view.turn = data.asked?.turn ?? view.turn;
    if (data.message) {
      out.replaceChildren(h("p", { class: "kl-notice kl-error", role: "status" }, data.message));
      return;
    }
    if (data.kind === "without" && view.data?.kind === "write" && view.data.sides.knn?.trace) view.before = view.data;
    if (data.kind === "write") view.before = null;
    const begins = view.data && view.data.asked !== undefined && out.dataset.done !== "false";
    draw(data);
    if (begins && matchMedia("(max-width: 760px)").matches) out.scrollIntoView({ block: "start" });
    if (writes && isNew && out.dataset.done === "true") keepAs(LAST, answer);
  };

  out.addEventListener("click", (event) => {
    const word = event.target.closest(".kl-w[role=button]");
    if (word) open(Number(word.dataset.word));
  });
  out.addEventListener("keydown", (event) => {
    if (event.key === "Escape") view.close();
    const word = event.target.closest?.(".kl-w[role=button]");
    if (!word) return;
    const all = words();
    const place = all.indexOf(word);
    if (event.key === "Enter" || event.key === " ") open(Number(word.dataset.word));
    else if (event.key === "ArrowRight" && all[place + 1]) all[place + 1].focus();
    else if (event.key === "ArrowLeft" && all[place - 1]) all[place - 1].focus();
    else return;
    event.preventDefault();
  });
  views.push(view);
  show((writes && keptLast()) || props.value);
  view.turn = 0; // a server that was started anew counts from elsewhere
  watch("value", () => show(props.value, true));
  return view;
};
