// Draws an answer. Its words are coloured by the memory's part in them, with one line above.

const TITLES = { lm: "The model alone", old: "Before", knn: "With its memory (kNN)", text: "The text" };

// Returns the words of a side with their states. A side has few details until it is traced.
const read = (side, kind) => {
  const states = side.trace ? side.trace.tokens.map(traced) : side.words.map(([text, share, changed]) =>
    ({ text, share, meaning: share < LEAST ? "own" : changed ? "changed" : "agreed" }));
  const words = wordsOf(states.map((one) => one.text)).map((word) => judged(word, states));
  // A text that continues no prompt begins without a space.
  if (words.length && !side.prompt) words[0].space = "";
  // Of a text that is explained nothing predicts the first token, which may be the first piece of a word.
  if (kind === "explain" && words.length && !words[0].space && readable(words[0])) {
    words[0].text = side.prompt + words[0].text;
    side = { ...side, prompt: "" };
  }
  return { side, states, words, spans: side.trace ? spansOf(words, states) : [] };
};

const readable = (word) => /[\p{L}\p{N}]/u.test(word.text);

// Returns how many words begin two texts alike, and the word from which on they differ, if they do: blanks
// do not count. How a text that was stopped would go on is not known, and its last word may be a part of one.
const partingOf = (known, other) => {
  const ends = [known, other].map((one) => (one.side.stopped ? Math.max(0, one.words.length - 1) : Infinity));
  const [mine, theirs] = [known, other].map((one) => one.words.slice(0, Math.min(...ends)).filter((word) => word.whole.trim()));
  const bare = (word) => word?.whole.trim();
  const place = (mine.length > theirs.length ? mine : theirs).findIndex((_, at) => bare(mine[at]) !== bare(theirs[at]));
  if (place < 0) return { alike: Math.min(...ends, known.words.length) };
  return { alike: mine[place]?.number ?? known.words.length, parting: visible(bare(mine[place] ?? theirs[place])) };
};

// Says in one line what the memory did; the `other` text stands beside it.
const headline = (data, known, same, other) => {
  const words = known.words.filter(readable);
  const of = (meaning, from = 0) => words.filter((one) => one.meaning === meaning && one.number >= from).length;
  const { alike, parting } = other ? partingOf(known, other) : { alike: 0 };
  // A sampled text may have the same word, though it was not the likeliest to the model alone.
  const agreed = of("agreed"), unlike = words.filter((one) => one.unlike && one.number >= alike).length;
  const changed = of("changed", alike);
  if (data.kind === "without") {
    const others = known.words.filter((one) => readable(one) && !same?.[one.number]).length;
    return [h("b", {}, others ? `Without it ${others} of ${words.length} words differ`
      : parting ? `Without it the text differs from “${parting}” on` : "Without it nothing changes"),
      `: this is the answer as if “${data.named}” had never been read.`];
  }
  if (data.kind === "explain") {
    // Nothing predicts the first word, which is compared if the next one is.
    const opening = readable({ text: known.side.prompt }) ? 1 : 0, all = words.length + opening;
    const compared = words.filter((word) => word.compared).length + (words[0]?.compared ? opening : 0);
    if (!compared) return [h("b", {}, "Nothing was compared"), ": the sentences are too short, or too different from the passages that were found."];
    const different = known.side.trace.contradictions.length, some = `${compared === all ? "all" : `${compared} of`} ${count(all, "word")}`;
    const said = different ? `${count(different, "difference")} in ${some} that were compared with a passage` : `The same in a passage: ${some}`;
    return [h("b", {}, said), ".", compared < all ? " Nothing is known of the gray words, which were not compared." : ""];
  }
  if (!words.length) return [h("b", {}, "No word was written"), "."];
  const and = `${unlike ? ` (${unlike} dotted: the source may be about something else)` : ""}${agreed ? `, and agreed to ${agreed}` : ""}.`;
  const brought = `memory brought ${changed ? `${changed} of ${count(words.length, "word")}` : "no word"}`;
  if (parting) return [h("b", {}, `The texts differ from “${parting}” on`), `${changed ? ": " : ", but "}the ${brought}`, and];
  if (!changed && !agreed) return [h("b", {}, "The memory changed no word"), ": no passage speaks for this text."];
  return [h("b", {}, changed ? `The ${brought}` : "The memory changed no word"), and];
};

const legend = (kind) => {
  const item = (name, label) => h("span", { class: `kl-w ${name}`, style: "--kl-part: .5" }, label);
  const brought = kind === "explain" ? "the memory would have brought it" : "the memory brought it";
  return h("p", { class: "kl-legend" }, item("kl-changed", brought), item("kl-agreed", "it agreed"), "stronger: more of it",
    item("kl-not", "a passage says otherwise"), kind === "explain" ? "gray: not compared" : item("kl-unlike", "the source may be about something else"),
    h("span", {}, "Click a word, or press Tab and Enter, to see where it comes from."));
};

const LOOKS = { changed: "kl-changed", agreed: "kl-agreed", contradicted: "kl-not" };
const look = (word, same) => ["kl-w", LOOKS[word.meaning], same && "kl-same", word.compared && "kl-compared", word.unlike && "kl-unlike"]
  .filter(Boolean).join(" ");
const SAYS = {
  changed: "brought by the memory", agreed: "the memory agreed", own: "the model’s own",
  contradicted: "the memory says otherwise", pieces: "no passage has the whole number",
  elsewhere: "the passages with it are about something else",
};
const hint = (word) => {
  const less = word.meaning === "own" && word.share >= LEAST;
  return `${less ? "the memory makes it less likely" : SAYS[word.meaning]}: ${percent(word.share)} by the memory`;
};

// Returns the words as elements. With `open` they are buttons. Otherwise they are only coloured.
const textOf = (known, { same, open, panel, coloured }) => {
  const drawn = (word) => {
    const gray = same?.[word.number];
    if (!word.text || !(coloured || gray)) return [word.space, word.text];
    const opening = open ? { role: "button", tabindex: "0",
      "aria-controls": panel, "aria-description": hint(word), "data-word": word.number } : {};
    const colours = { class: look(word, gray), style: `--kl-part: ${word.share}` };
    return [word.space, h("span", coloured ? { ...colours, ...opening } : { class: "kl-same" }, word.text)];
  };
  return known.words.map((word, place) => {
    const span = known.spans.find((one) => one.first <= place && place <= one.last);
    if (!span || span.first === span.last) return drawn(word);
    if (place > span.first) return null;
    const [space, ...inner] = known.words.slice(place, span.last + 1).flatMap(drawn);
    return [space, h("span", { class: "kl-span" }, inner)];
  });
};

const footer = (side, { tools }) => {
  const parts = [];
  if (side.done || side.seconds) parts.push(h("span", {}, count(side.tokens, "token")));
  if (side.stopped) parts.push(h("span", {}, `ended early: ${side.stopped}`));
  if (side.knn && !side.trace && side.seconds) parts.push(h("span", {}, "looking the passages up …"));
  return parts.length ? h("div", { class: "kl-foot" }, parts, tools) : null;
};

// The text before an answer. Words that a passage contradicts are marked.
const promptOf = ({ prompt, trace }) => {
  const parts = [];
  for (const { words, token } of [...trace?.contradictions ?? []].reverse()) {
    // The last difference may go on in the answer.
    const begun = [...words.matchAll(/\s+/g)].map(({ index }) => words.slice(0, index));
    const word = token === null ? words : token ? null : begun.findLast((one) => prompt.endsWith(one));
    const at = word ? prompt.lastIndexOf(word) : -1;
    if (at < 0) continue;
    parts.unshift(h("span", { class: "kl-not" }, word), prompt.slice(at + word.length));
    prompt = prompt.slice(0, at);
  }
  return [prompt, ...parts];
};

const column = (name, known, options) => {
  const { side } = known;
  return h("article", { class: `kl-answer kl-side-${name}` }, h("h2", {}, options.title ?? TITLES[name]),
    h("div", { class: "kl-text", dir: "auto" },
      side.prompt ? h("span", { class: `kl-prompt${name === "text" && known.words[0]?.compared ? " kl-compared" : ""}` }, promptOf(side)) : null,
      textOf(known, options), side.done ? null : h("span", { class: "kl-caret", "aria-hidden": "true" })),
    footer(side, options));
};

// Chooses the word that is opened first: the first that a passage contradicts, or else the changed or
// agreed word with the largest share of the memory.
const firstOpened = (known, kind) => {
  if (kind === "chat") return null;
  const order = ["own", "agreed", "changed", "contradicted"];
  const weight = (word) => order.indexOf(word.meaning) + (word.against ? 0 : word.share / 2);
  const best = known.words.filter((one) => readable(one) && one.meaning !== "own")
    .reduce((one, two) => (one && weight(one) >= weight(two) ? one : two), null);
  return best && best.number;
};
