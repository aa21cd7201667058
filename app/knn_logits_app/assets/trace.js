// Unpacks a trace. The server numbers the documents and sends each only once (views.py).

const documentOf = (trace, number) => {
  const [store, document, title, uri] = trace.documents[number];
  return { store, document, title, uri, name: title || document };
};
const neighborOf = (packed) => {
  const [document, entry, before, word, after, weight, distance, influence, title, uri, source, matched] = packed;
  return { document, entry, before, word, after, weight, distance, influence, title, uri, source, matched };
};
const candidateOf = ([token, id, p, p_lm, p_knn]) => ({ token, id, p, p_lm, p_knn });

// Whether a token's neighbors are far: none is near, or none knows such a text. What stands in a
// passage word for word is near.
const isFar = (token, trace) => (token.near === false || trace.near === false)
  && !token.verbatim && !token.neighbors.some((one) => neighborOf(one).matched);

// Returns the state of a token under the settings that the answer was written with.
const traced = (token, trace) => ({
  text: token.token,
  id: token.token_id,
  p: token.p,
  p_lm: token.p_lm,
  p_knn: token.p_knn,
  lmbda: token.lmbda,
  share: token.influence,
  meaning: token.meaning,
  verbatim: token.verbatim,
  far: isFar(token, trace),
  documents: new Map(token.documents),
  rest: token.rest,
  rival: token.by_memory && {
    token: token.by_memory[0], p: token.by_memory[1], document: token.by_memory[2],
    entry: token.by_memory[4], passage: token.by_memory[5] && neighborOf(token.by_memory[5]), length: token.by_memory[6],
  },
  candidates: token.candidates.map(candidateOf),
});

// Returns the trace in the format of the library, which Trace.load() reads.
const wholeTrace = (packed) => {
  const share = ([number, part]) => {
    const { store, document, title, uri } = documentOf(packed, number);
    return { store, document, title, uri, share: part };
  };
  const named = (one) => {
    const found = neighborOf(one);
    const { store, document, title, uri } = documentOf(packed, found.document);
    return { ...found, document, store, title: found.title ?? title, uri: found.uri ?? uri };
  };
  const rival = (one) => one && {
    token: one[0], p: one[1], document: one[2] === null ? null : share([one[2], one[3]]), entry: one[4],
    passage: one[5] && named(one[5]), length: one[6],
  };
  const neighbor = (one) => {
    const found = named(one);
    return { ...found, snippet: found.before + found.word + found.after };
  };
  const tokens = packed.tokens.map(({ rest, ...one }) => ({
    ...one,
    special: false, // the page's traces have words only
    by_model: rival(one.by_model),
    by_memory: rival(one.by_memory),
    documents: one.documents.map(share),
    candidates: one.candidates.map(([token, token_id, p, p_lm, p_knn]) =>
      ({ token, token_id, p, p_lm, p_knn })),
    neighbors: one.neighbors.map(neighbor),
  }));
  const { near, alone, stores, documents, tokens: _, ...rest } = packed;
  return {
    format: "knn-logits trace",
    version: 1,
    stores: stores ?? [],
    sequences: [{ ...rest, text: tokens.map((one) => one.token).join(""), tokens }],
  };
};
