// Mounts the place of an answer. It draws the answers of the server and handles clicks on them.

// The settings that the browser mixes by itself.
const MIXED = ["lmbda", "k", "temperature"];
// Names the values of a form: datastores, settings, and others.
const formOf = (values) => ({
  stores: values[0], rest: values.slice(names.length + 1),
  settings: Object.fromEntries(names.map((name, place) => [name, values[place + 1]])),
});
// The current values of the controls. The others say whether kNN is on.
let form = null;
const views = [];
const controls = (...values) => {
  form = formOf(values);
  views.forEach((view) => view.follow());
};

const know = (known, ...values) => {
  server = known;
  ({ names } = known);
  controls(...values);
};

// The first screen of a chat shows the answer with which the page begins, if the memory has a part in it.
const first = { value: null, show: () => {} };
const example = (element, trigger) => {
  first.show = () => {
    const told = JSON.parse(first.value || "{}").sides?.knn;
    if (!told?.trace?.tokens.some((one) => ["changed", "agreed"].includes(one.meaning))) return;
    mount(element, { value: first.value }, trigger, () => {});
    document.getElementById("example").classList.add("kl-shown");
  };
  first.show();
};

const mount = (element, props, trigger, watch) => {
  const out = element.querySelector(".kl-out");
  const view = {
    data: null, known: null, opened: null, settings: null, gated: false,
    asks: false, reads: Boolean(trigger), metric: "l2", same: null, before: null, waiting: false, turn: 0,
  };
  const writes = Boolean(element.closest("#answers"));
  const panel = `${element.closest("[id]")?.id || "answer"}-${views.length}-panel`;
  const words = () => [...out.querySelectorAll(".kl-w[role=button]")];
  const elementOf = (number) => out.querySelector(`.kl-w[data-word="${number}"]`);

  view.spanOf = (word) => view.known.spans.find((one) => one.first <= word.number && word.number <= one.last);

  // Returns the settings to draw with, or null for those of the answer. `stale` says why the answer
  // cannot follow the controls.
  const wanted = () => {
    const { live } = view.known;
    if (!form || !view.data.asked?.values) return { settings: null, stale: null };
    const asked = formOf(view.data.asked.values);
    if (JSON.stringify(form.stores) !== JSON.stringify(asked.stores))
      return { settings: null, stale: "another memory is chosen now" };
    const off = form.rest[0] === false && view.data.kind !== "explain";
    const moved = names.filter((name) => form.settings[name] !== asked.settings[name]);
    // What was not moved is as it was written, also where a gate chose λ.
    if (!moved.length && !off) return { settings: null, stale: null };
    if (!live && view.known.side.adaptive)
      return { settings: null, stale: "the gate set λ for each word, so what is moved counts when it is written again" };
    if (!live || moved.some((name) => !MIXED.includes(name)))
      return { settings: null, stale: "other settings are chosen now" };
    const settings = Object.fromEntries(MIXED.map((name) => [name, moved.includes(name) ? form.settings[name] : live[name]]));
    if (off) settings.lmbda = 0;
    const valid = settings.temperature > 0 && settings.k >= 1 && settings.lmbda >= 0 && settings.lmbda <= 1;
    if (!valid) return { settings: null, stale: null };
    if (settings.k > live.k) return { settings: null, stale: `more than ${live.k} neighbors are wanted now` };
    const same = !live.gate && settings.lmbda === live.lmbda && settings.k === live.k
      && settings.temperature === live.temperature;
    return { settings: same ? null : settings, stale: null };
  };

  const apply = () => {
    const { settings, stale } = wanted();
    const { live } = view.known;
    view.known = under(view.known, settings);
    view.gated = !settings && Boolean(live?.gate);
    view.settings = settings ?? (live && { lmbda: live.lmbda, k: live.k, temperature: live.temperature });
    view.changed = settings;
    view.stale = stale;
    view.known.words.forEach((word) => {
      word.flips = Boolean(settings && live.greedy) && word.tokens.some((one) => view.known.states[one].best);
    });
  };

  const again = () => press(view.data.kind === "explain" ? "#explain" : "#write");
  const notice = () => {
    const { changed, stale, known } = view;
    if (!changed && !stale) return null;
    const flips = known.words.filter((one) => one.flips && readable(one)).length;
    const line = stale ? `These words do not show the settings at the side: ${stale}. `
      : `Colours and bars show λ ${short(changed.lmbda)}, k ${changed.k}, τ ${short(changed.temperature)}. `
        + (flips ? `${count(flips, "word")} would be different (dotted). `
          : known.live.greedy ? "The words would be the same. " : "");
    return h("p", { class: "kl-stale", role: "status" }, line,
      view.asks || stale ? button(view.data.kind === "explain" ? "Explain again" : "Write again",
        again, { class: "kl-link" }) : null);
  };

  // Lists what the text says otherwise than the passages that it quotes.
  const differences = () => {
    const found = differencesOf(view.known);
    if (view.data.kind !== "explain" || !found.length) return null;
    return h("ul", { class: "kl-differences", "aria-label": "Differences" }, found.map(({ words: mine, against }) =>
      h("li", {}, "Your text: ", button(mine.map((one) => one.whole).join("").trim(), () => view.opened === mine[0].number || open(mine[0].number), { class: "kl-link" }),
        " · Source: ", h("b", {}, visible(against.token).trim()),
        against.document === null ? null : h("span", { class: "kl-hint" }, ` (${documentOf(view.known.side.trace, against.document).name})`))));
  };

  // Says that nothing is near.
  const nothingNear = () => view.known.side.trace?.alone ? h("div", { class: "kl-far", role: "status" },
    h("p", {}, h("b", {}, "Nothing near."), " The memory has no part in these words.")) : null;

  // Redraws everything that depends on the settings, which is all but the text.
  const repaint = () => {
    const { known, same } = view;
    known.words.forEach((word) => {
      const shown = elementOf(word.number);
      if (!shown) return;
      const names = look(word, same?.[word.number]);
      if (shown.className !== names) shown.className = names;
      shown.setAttribute("aria-description", hint(word));
    });
    out.querySelector(".kl-headline").replaceChildren(...headline(view.data, known, same));
    out.querySelector(".kl-notes").replaceChildren(...[notice()].filter(Boolean));
    out.querySelector(".kl-docs")?.replaceWith(documentsAside(view));
    draw_panel();
  };
  const draw_panel = () => {
    const place = out.querySelector(".kl-panels");
    if (!place) return;
    place.replaceChildren(...(view.opened === null ? [] : [panelOf(view.known.words[view.opened], view)]));
  };

  view.follow = () => {
    if (!view.known?.side.trace) return;
    apply();
    repaint();
  };

  const open = (number) => {
    const was = view.opened;
    if (was !== null) elementOf(was)?.setAttribute("aria-expanded", "false");
    view.opened = was === number ? null : number;
    if (view.opened !== null) elementOf(number)?.setAttribute("aria-expanded", "true");
    draw_panel();
    // In a narrow window the sources are a sheet over the lower part, so the word is moved above it.
    if (view.opened !== null && sheets()) elementOf(number)?.scrollIntoView({ block: "start", behavior: "smooth" });
  };
  view.close = (focus) => {
    const was = view.opened;
    if (was === null) return;
    open(was);
    if (focus) elementOf(was)?.focus();
  };
  view.light = (document) => {
    view.known.words.forEach((word) => {
      const mine = document !== null && word.tokens.every((one) =>
        (view.known.states[one].documents.get(document) ?? 0) >= LEAST);
      elementOf(word.number)?.classList.toggle("kl-lit", mine);
    });
  };

  // Opens a whole document at a place, and marks the places of the answer's other words in it.
  view.readDocument = (number, place, opener) => {
    const { store, document, name } = documentOf(view.known.side.trace, number);
    const places = view.known.spans.filter((one) => one.passage.document === number)
      .map((one) => [one.passage.entry, one.tokens]);
    openDocument(trigger, opener, name, null,
      { store, document, places: place ? [place, ...places] : places });
  };

  // Requests the answer as if a document had never been read.
  view.without = ({ document, name }) => {
    const { values, without } = view.data.asked;
    writing(true);
    trigger("ask", { values, without: [...(without ?? []), document], named: name.slice(0, 200) });
  };

  const columns = (data) => {
    const known = Object.fromEntries(Object.entries(data.sides).map(([name, side]) => [name, read(side)]));
    if (data.kind === "without" && view.before) known.old = read(view.before.sides.knn);
    return known;
  };

  const draw = (data) => {
    const known = columns(data);
    const main = known.knn ?? known.text ?? known.lm;
    const other = known.lm ?? known.old;
    const traced = Boolean(main.side.trace);
    Object.assign(view, { data, known: main, same: null });
    view.asks = writes && traced && ["write", "without"].includes(data.kind);
    view.metric = main.side.metric ?? view.metric;
    let otherSame = null;
    if (other && other !== main && other.side.done && main.side.done) {
      [otherSame, view.same] = sharedWords(...[other, main].map((one) => one.words.map((word) => word.text)));
    }
    if (traced) {
      apply();
      // The answer beside this one may still be written. Its frames leave the opened word as it is.
      if (!view.waiting) {
        const asked = linked.kind === data.kind && view.known.words[linked.word]?.text ? linked.word : null;
        // A sheet with the sources of a word would hide the answer.
        view.opened = asked ?? (sheets() ? null : firstOpened(view.known, data.kind));
        if (data.kind === linked.kind && !linked.run) linked.word = null;
      }
      view.waiting = !Object.values(data.sides).every((side) => side.done);
    } else Object.assign(view, { opened: null, waiting: false });
    const two = [];
    if (known.lm && known.lm !== main) two.push(column("lm", known.lm, { same: otherSame, kind: data.kind }));
    if (known.old) {
      const back = button("Back to it", () => draw(view.before), { class: "kl-link kl-back" });
      two.push(column("old", { ...known.old, spans: [] }, { same: otherSame, coloured: true, kind: data.kind, tools: back }));
    }
    const name = known.knn ? "knn" : known.text ? "text" : "lm";
    two.push(column(name, view.known, {
      title: data.kind === "without" ? `Without “${data.named}”` : undefined, same: view.same, open: traced, panel, coloured: main.side.knn, kind: data.kind, tools: trigger ? toolsOf(view) : null,
    }));
    const beside = traced ? h("div", { class: "kl-right" }, documentsAside(view), h("div", { class: "kl-panels", id: panel })) : null;
    const grid = h("div", { class: `kl-grid kl-has-${two.length}${traced ? " kl-beside" : ""}` }, two, beside);
    if (!main.side.knn) out.replaceChildren(grid);
    else
      out.replaceChildren(
        h("p", { class: "kl-headline", role: "status" }, traced ? headline(data, view.known, view.same) : null),
        h("div", { class: "kl-notes" }, traced ? notice() : null), ...[traced && differences(), nothingNear()].filter(Boolean), grid,
        legend(data.kind, view.known));
    draw_panel();
    if (view.opened !== null) elementOf(view.opened)?.setAttribute("aria-expanded", "true");
    out.dataset.done = String(Object.values(data.sides).every((side) => side.done));
  };

  // Puts in the sides that an earlier frame of the same request had. Returns false if one is missing.
  const completed = (data) => Object.keys(data.sides).every((name) => {
    if (!data.sides[name].known) return true;
    if (view.data?.asked?.turn !== data.asked.turn || !view.data.sides[name]?.trace) return false;
    data.sides[name] = view.data.sides[name];
    return true;
  });

  const show = (answer, isNew) => {
    if (!answer) return;
    const data = JSON.parse(answer);
    // A newer request has replaced the one of this frame.
    if ((data.asked?.turn ?? view.turn) < view.turn) return;
    view.turn = data.asked?.turn ?? view.turn;
    if (writes) writing(!data.message && !Object.values(data.sides).every((side) => side.done));
    if (data.message) {
      view.waiting = false;
      out.replaceChildren(h("p", { class: "kl-notice kl-error", role: "status" }, data.message));
      return;
    }
    if (!completed(data)) return;
    if (view.data && view.data.kind !== "explain" && data.kind !== view.data.kind && view.data.sides.knn?.trace
        && data.kind === "without") view.before = view.data;
    if (data.kind === "write") view.before = null;
    const begins = view.data && view.data.asked !== undefined && out.dataset.done !== "false";
    draw(data);
    if (begins && narrow()) out.scrollIntoView({ block: "start" });
    if (writes && isNew && out.dataset.done === "true") keepLast(answer);
  };

  out.addEventListener("click", (event) => {
    const word = event.target.closest(".kl-w[role=button]");
    if (word) open(Number(word.dataset.word));
  });
  out.addEventListener("keydown", (event) => {
    if (event.key === "Escape") view.close(true);
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
  if (!element.closest("#example")) views.push(view);
  if (writes) {
    first.value = props.value;
    first.show();
  }
  show((writes && keptLast()) || props.value);
  view.turn = 0; // a server that was started anew counts from elsewhere
  watch("value", () => show(props.value, true));
  return view;
};
