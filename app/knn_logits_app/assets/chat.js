// The chat: questions in turns, their answers, and the passages behind each answer. The browser's tab
// keeps the conversation, so that a reload does not lose it. The server keeps none.

const KEPT_AS = "knn-logits conversation", MOST_TURNS = 50, MOST_PAIRS = 8;
const theChat = { asked: () => {}, askAll: () => {}, attaching: () => {}, opened: () => {}, lost: false };
// Says what went wrong, beside the question, until the visitor does something else.
theChat.complain = (line) => complain(document.getElementById("chat-line"), line);
document.addEventListener("input", ({ target, isTrusted }) => isTrusted && target.closest?.("#chat-form, #stores") && theChat.complain(null));

const passageOf = (passage, frame, read, near) => {
  // chat.css keeps a margin from the form.
  const opened = ({ target }) => [target, target.querySelector("mark")].forEach((one) => target.open && one?.scrollIntoView({ block: "nearest" }));
  return h("details", { class: "kl-source", ontoggle: opened },
    h("summary", {}, h("b", {}, passage.title), frame.stores.length > 1 ? h("span", { class: "kl-store" }, passage.store) : null,
      near ? [" ", h("span", { class: "kl-from" }, rendered(passage.sentence))] : null),
    h("blockquote", { dir: "auto" }, rendered(passage.text)),
    h("p", { class: "kl-hint" }, button("Read the document", () => read(passage), { class: "kl-link" }), " ", link(passage.uri, "Open the original")));
};

// The words of an answer. Those that stand in a passage are underlined, and a click opens it there.
const saidIn = (frame, read) => {
  const words = frame.parts.map(([text, source], place) => {
    const bare = text.trimStart(), space = place ? text.slice(0, text.length - bare.length) : "";
    // Words that are selected shall be copied. In an element with a tabindex nobody could select the first.
    const onclick = ({ target }) => {
      if (!getSelection().isCollapsed) return;
      // These words take no focus, which the document gives back when it is closed.
      target.closest(".kl-reply").querySelectorAll("summary")[source].focus({ preventScroll: true });
      read(frame.passages[source]);
    };
    return [space, source === null ? rendered(bare)
      : h("span", { class: "kl-says", title: "Read it in the document", onclick }, rendered(bare))];
  });
  // Of several questions each quotation has marks already, beside what is not answered.
  const [begin, end] = frame.table || /(^|\n\n)“/.test(frame.text) ? [] : ["“", "”"];
  if (frame.quoted) return h("blockquote", { class: `kl-said ${frame.note ? "kl-perhaps" : "kl-quoted"}`, dir: "auto" }, begin, words, end);
  return h("p", { class: "kl-said", dir: "auto" }, words, frame.done ? null : h("span", { class: "kl-caret", "aria-hidden": "true" }));
};

// An answer as far as it is there: { done, text, ... } as tab_chat.py packs it.
const replyOf = (frame, tools) => {
  if (!frame || (!frame.done && !frame.text))
    return [h("p", { class: "kl-looking" }, h("i", { "aria-hidden": "true" }),
      frame ? "Looking in the documents …" : "Waiting for the server …")];
  const missing = frame.answered === false, [first, ...others] = frame.passages ?? [];
  const isNear = (one) => one !== first && !one.read;
  const sources = (frame.passages ?? []).flatMap((one) => [one === others.find(isNear) ? h("p", { class: "kl-from" }, "Alternatives:") : null,
    passageOf(one, frame, tools.read, isNear(one))]);
  return [
    ...missing ? [h("p", { class: "kl-alone" }, h("b", {}, frame.text)), first && h("p", { class: "kl-from" }, h("b", {}, "Nearest passage, perhaps an answer:")),
      first && h("blockquote", { class: "kl-said kl-perhaps", dir: "auto" }, rendered(first.sentence))]
      : [frame.note ? h("p", { class: "kl-from" }, frame.note) : null, frame.text ? saidIn(frame, tools.read) : null],
    frame.stopped ? h("p", { class: "kl-hint" }, frame.stopped === "the time is up" && !frame.text
      ? "The time was up before an answer was found: the server may be busy." : `ended early: ${frame.stopped}`, " ",
      button("Ask again", tools.again, { class: "kl-link" })) : null,
    first && !missing ? h("p", { class: "kl-from" }, frame.table ? `From ${others.some((one) => one.read) ? "texts and tables" : "the table"} in:`
      : frame.quoted ? "Quoted word for word from:" : "Written by the model, which read this (underlined words are quoted from it):") : null,
    ...sources,
    !frame.done || frame.stopped || frame.stores.includes(MINE) ? null
      : h("p", { class: "kl-from" }, h("a", { href: tools.link(), ...LINK }, "Link to this answer")),
  ].filter(Boolean);
};

const chat = (element, props, trigger, watch) => {
  const { questions, texts } = JSON.parse(props.value);
  const out = element.querySelector(".kl-chat");
  const log = h("ol", { class: "kl-log", "aria-label": "The conversation" });
  const told = h("p", { class: "kl-sr", role: "status" });
  const start = h("div", { class: "kl-start" });
  const build = h("p", { class: "kl-looking" });
  out.append(log, start, build, told);
  const places = new Map();
  let turns = [];
  let waiting = 0; // requests that the server has not ended
  let next = []; // questions of a link that are asked after this one
  let building = false; // whether documents of the visitor are read
  let newest = 0; // when the newest request came to read some
  let mine = null; // the visitor's own documents: { name, line }
  let left = []; // files of the newest choice that were not sent, with the reason
  let held = false; // whether the visitor has scrolled since the last question

  const field = () => document.querySelector("#chat-question textarea");
  const running = () => turns.find((one) => !one.frame?.done);
  const keep = () => keepAs(KEPT_AS, JSON.stringify({ turns: turns.slice(-MOST_TURNS), mine }));
  const end = (turn, stopped) => {
    turn.frame = { text: "", parts: [], passages: [], stores: [], ...turn.frame, done: true, stopped };
  };
  const read = (passage) => {
    const quoted = { ...passage, text: passage.text.find(([, marked]) => marked)?.[0] };
    openDocument(trigger, passage.title, quoted, { store: passage.store,
      document: passage.document, places: [], passages: [passage.span] });
  };

  const follow = () => {
    const last = build.childNodes.length ? build : log.lastElementChild;
    if (!held) last?.scrollIntoView({ block: "nearest" });
  };
  const chosen = () => (form?.stores ?? []).map((one) => (one === MINE ? mine?.name : one)).sort().join(", ");
  // Says what is asked from here on, where that is not what was asked before.
  const divide = (of) => {
    if (log.lastElementChild?.matches(".kl-divider")) log.lastElementChild.remove();
    const before = log.lastElementChild?.dataset.of;
    if (!of || of === (before ?? (mine ? null : of))) return;
    log.append(h("li", { class: "kl-divider", role: "note" }, h("b", {}, `Now asking: ${of}`), of === mine?.name ? ` (${mine.line})` : ""));
  };
  const draw = (turn) => {
    if (!places.has(turn)) {
      const reply = h("div", { class: "kl-reply" });
      divide(turn.of);
      log.append(h("li", { "data-of": turn.of }, h("h3", { class: "kl-sr" }, "Question"), h("p", { class: "kl-question", dir: "auto" }, turn.question),
        h("h3", { class: "kl-sr" }, "Answer"), reply));
      places.set(turn, reply);
    }
    const again = () => ask(turn.question);
    places.get(turn).replaceChildren(...replyOf(turn.frame, { again, read, link: () => linkTo(turn) }));
    busy();
  };
  const busy = () => {
    const yes = Boolean(running()) || building;
    log.setAttribute("aria-busy", String(yes));
    document.documentElement.classList.toggle("kl-asking", yes);
    able("chat-stop", yes);
  };
  // A question may refer back to the one before it, so the link asks both.
  const linkTo = (turn) => {
    const at = turns.indexOf(turn);
    const questions = turns.slice(Math.max(0, at - 1), at + 1).map((one) => ["ask", one.question]);
    return addressWith([...questions, ...turn.frame.stores.map((one) => ["store", one])]);
  };
  const drawAll = () => {
    places.clear();
    log.replaceChildren();
    turns.forEach(draw);
    busy();
    begin();
  };

  // Says what is asked now, and what can be asked before anything was.
  const begin = () => {
    const own = form?.stores.includes(MINE), none = own || !form?.stores.length;
    divide(chosen());
    if (!own) theChat.before = form?.stores;
    const gone = Boolean(turns.length || none);
    document.getElementById("example")?.classList.toggle("kl-gone", gone);
    // Its sheet would come back with it, over the question.
    if (gone && sheets()) document.querySelector("#example .kl-close")?.click();
    // The examples of texts are of the other documents.
    const ownOnly = Boolean(own && form.stores.length === 1);
    document.querySelector(".kl-chips")?.classList.toggle("kl-gone", ownOnly);
    for (const box of document.querySelectorAll(":is(#prompt, #explain-text) textarea"))
      if (ownOnly && texts.includes(box.value)) fill(box, "");
    start.replaceChildren(...(turns.length ? [] : [
      h("p", {}, "Ask about the documents. The answer is a sentence of theirs, with its place."),
      ...(none ? [] : questions.map((one) => button(one, () => ask(one), { class: "kl-chip" }))),
    ]));
  };

  const history = () => turns.filter((one) => one.frame?.done && one.frame.text).slice(-MOST_PAIRS)
    .flatMap((one) => [{ role: "user", content: one.question }, { role: "assistant", content: one.frame.text }]);

  // A question that was refused goes back into its box, with the reason below.
  const refuse = (turn, line) => {
    turns.splice(turns.indexOf(turn), 1);
    next = [];
    keep();
    drawAll();
    if (!field().value) fill(field(), turn.question);
    theChat.complain(line);
    told.textContent = "";
  };

  const ask = (question) => {
    const wrong = building ? "Your documents are being read: send this when they are in, or press Stop."
      : form.stores.length ? null : "Choose at least one of the documents.";
    theChat.complain(question.trim() && wrong);
    if (!question.trim() || wrong) {
      field().focus();
      return;
    }
    if (question === field().value) fill(field(), "");
    const before = running();
    if (before) {
      end(before, "another question was asked");
      draw(before);
    }
    const turn = { turn: (turns.at(-1)?.turn ?? 0) + 1, of: chosen(), question, frame: null };
    turns.push(turn);
    next = [];
    begin();
    draw(turn);
    keep();
    held = false;
    follow();
    waiting += 1;
    trigger("ask", { turn: turn.turn, question, history: history() });
  };
  theChat.askAll = ([first, ...others]) => {
    ask(first);
    next = others;
  };
  // The server has ended a request. One that it refused has no frame.
  theChat.asked = () => {
    waiting -= 1;
    setTimeout(() => {
      const turn = running();
      if (turn && !waiting) refuse(turn, "The server did not respond.");
    }, 1000);
  };

  // Shows how far a build is, and a divider at its end.
  const showBuild = ({ attached, now, unread = [], done }) => {
    building = !done;
    if (now) {
      // A file that was replaced is asked from here on, whatever it is called.
      if (mine?.name === now) log.lastElementChild?.removeAttribute("data-of");
      mine = { name: now, line: attached };
      keep();
      field().focus();
    }
    const lost = [...left, ...unread].join(", ");
    if (done) {
      begin();
      theChat.complain([now ? "" : attached, lost && `Could not read ${lost}.`].join(" ").trim());
    }
    build.replaceChildren(...(done ? [] : [h("i", { "aria-hidden": "true" }), clean(attached)]));
    told.textContent = done && now ? clean(`Now asking: ${now}.`) : "";
    busy();
    follow();
  };
  theChat.opened = () => { held = false; follow(); };
  theChat.attaching = (names) => { left = names; showBuild({ attached: "Waiting for the server …", done: false }); };

  const show = () => {
    if (!props.value) return;
    const frame = JSON.parse(props.value);
    if (frame.build !== undefined) {
      // One that was stopped may end after the next one has begun.
      if (frame.build >= newest) showBuild(frame);
      newest = Math.max(newest, frame.build);
      return;
    }
    const turn = turns.find((one) => one.turn === frame.turn);
    if (!turn || turn.frame?.done) return;
    if (frame.message) {
      refuse(turn, frame.message);
      return;
    }
    turn.frame = frame;
    draw(turn);
    follow();
    if (!frame.done) return;
    told.replaceChildren(...rendered(clean([frame.note, frame.text].join("\n"))));
    keep();
    if (next.length) theChat.askAll(next);
  };

  const stop = () => {
    const turn = running();
    if (building) showBuild({ attached: "The build was stopped.", done: true });
    if (!turn) return;
    end(turn, "stopped");
    next = [];
    draw(turn);
    follow();
    keep();
  };
  document.addEventListener("click", (event) => {
    const pressed = event.target.closest?.("#chat-send, #chat-stop, #chat-new, #chat-detach")?.id;
    if (pressed === "chat-send") ask(field().value);
    else if (pressed === "chat-detach") keep(mine = null);
    else if (pressed === "chat-stop") stop();
    else if (pressed === "chat-new") {
      if (running()) document.getElementById("chat-stop").click();
      turns = [];
      theChat.complain(null);
      keep();
      drawAll();
      field().focus();
    }
  });
  for (const moved of ["wheel", "touchmove"]) addEventListener(moved, () => { held = true; }, { passive: true });
  // A page that is loaded again has lost the visitor's documents, so the browser asks before.
  addEventListener("beforeunload", (event) => mine && event.preventDefault());

  const kept = JSON.parse(sessionStorage.getItem(KEPT_AS) ?? '{ "turns": [] }');
  turns = kept.turns;
  turns.filter((one) => !one.frame?.done).forEach((one) => end(one, "the page was loaded again"));
  drawAll();
  keep();
  theChat.lost = Boolean(kept.mine);
  watch("value", show);
  views.push({ follow: begin });
};
