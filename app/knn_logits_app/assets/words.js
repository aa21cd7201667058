// Groups tokens into words, and words into spans. A span comes from one passage of a document.

// Signs that end a word and do not belong to it, as in `knn_logits/evidence/sources.py`.
const PUNCTUATION = ".,;:!?)]}»”\"'";
const isSign = (piece) => piece !== "" && [...piece.trim()].every((one) => PUNCTUATION.includes(one));

// Groups pieces of text into words, which white space separates. White space alone is a word of its
// own, since a passage may contain a line break but not the next word. So are the signs behind a
// word, since a sentence may end here that goes on in the passage.
const wordsOf = (pieces) => {
  const groups = [];
  pieces.forEach((piece, place) => {
    const before = (groups.at(-1) ?? []).map((one) => pieces[one]).join("");
    if (/^\s/.test(piece) || !before || /\s$/.test(before)) groups.push([]);
    groups.at(-1).push(place);
  });
  const parts = groups.flatMap((group) => {
    const end = group.findLastIndex((one) => !isSign(pieces[one])) + 1;
    return [group.slice(0, end), group.slice(end)].filter((part) => part.length);
  });
  return parts.map((tokens, number) => {
    const whole = tokens.map((one) => pieces[one]).join("");
    const text = whole.trimStart();
    return { number, space: whole.slice(0, whole.length - text.length), text, whole, tokens };
  });
};

// Returns a word with its meaning and the neighbors' share. The share is that of its weakest token. Of
// a word that was changed only those of the memory count: what follows may be certain to the model. A
// number that no passage has whole may be wrong, however likely the memory made its pieces. The numbers
// of its panel are those of one `piece`: the weakest of those that a passage contradicts or changed, if any.
const judged = (word, states) => {
  const mine = word.tokens.map((one) => states[one]);
  const has = (meaning) => mine.some((one) => one.meaning === meaning);
  const brought = has("changed") ? word.tokens.filter((one) => states[one].share >= LEAST) : [];
  const decisive = brought.length ? brought : word.tokens;
  const share = Math.min(...decisive.map((one) => states[one].share));
  let meaning = ["changed", "agreed"].find(has) ?? "own";
  if (share < LEAST) meaning = "own";
  else if (mine.some((one) => one.elsewhere)) meaning = "elsewhere";
  else if (/\p{N}/u.test(word.text) && mine[0].neighbors && !passagesOf(word, states).length) meaning = "pieces";
  if (has("contradicted")) meaning = "contradicted";
  const against = meaning === "contradicted" ? mine.find((one) => one.meaning === meaning).by_memory : null;
  const telling = ["contradicted", "changed"].map((name) => decisive.filter((one) => states[one].meaning === name));
  const piece = (telling.find((some) => some.length) ?? decisive).reduce((one, two) => (states[two].share < states[one].share ? two : one));
  const compared = Boolean(against) || mine.every((one) => one.verbatim);
  return { ...word, share, meaning, against, unlike: meaning === "changed" && mine.some((one) => one.unlike), compared, decisive, piece };
};

// Returns the documents that have a share in every decisive token of a word, with their shares in its
// `piece`, the largest first.
const documentsOf = (word, states) => {
  const mine = word.decisive.map((one) => states[one]);
  return [...mine[0].documents.keys()]
    .filter((number) => mine.every((one) => one.documents.has(number)))
    .map((number) => ({ number, share: states[word.piece].documents.get(number) }))
    .sort((one, two) => two.share - one.share);
};

// Returns the passages of the trace that contain the word, each as one of its first token.
const passagesOf = (word, states) => word.tokens.flatMap((at, place) => {
  const begun = word.tokens.slice(0, place).map((one) => states[one].text).join("");
  return states[at].neighbors
    .filter((one) => one.before.endsWith(begun) && (begun + one.word + one.after).startsWith(word.whole))
    .map((one) => ({ ...one, before: one.before.slice(0, one.before.length - begun.length),
      word: begun + one.word, entry: one.entry - place }));
});

// Finds consecutive words that are consecutive in a document too: [{ words, passage, … }].
const spansOf = (words, states) => {
  const shown = (word) => word.meaning === "changed" || word.meaning === "agreed";
  const spans = [];
  for (let first = 0; first < words.length; first += 1) {
    if (!words[first].text || !shown(words[first])) continue;
    let best = null;
    for (const passage of passagesOf(words[first], states)) {
      let last = first;
      let tokens = words[first].tokens.length;
      for (let next = first + 1; next < words.length; next += 1) {
        const goesOn = passagesOf(words[next], states).some((one) =>
          one.document === passage.document && one.entry === passage.entry + tokens);
        if (!goesOn || (words[next].text && !shown(words[next]))) break;
        tokens += words[next].tokens.length;
        if (words[next].text) last = next;
      }
      if (!best || last > best.last) best = { last, passage };
    }
    if (!best) continue;
    const mine = words.slice(first, best.last + 1);
    spans.push({ first, last: best.last, passage: best.passage, words: mine,
      tokens: sum(mine.map((one) => one.tokens.length)) });
    first = best.last;
  }
  return spans;
};

// The server numbers the documents and sends each only once (views.py).
const documentOf = (trace, number) => {
  const [store, document, title, uri] = trace.documents[number];
  return { store, document, title, uri, name: title || document };
};

// Returns the state of a token.
const traced = (token) => ({
  ...token,
  text: token.token,
  id: token.token_id,
  share: token.influence,
  documents: new Map(token.documents.map((one) => [one.document, one.share])),
  candidates: token.candidates.map((one) => ({ ...one, id: one.token_id })),
});
