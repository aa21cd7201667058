// Unpacks a trace. The server numbers the documents and sends each only once (views.py).

const documentOf = (trace, number) => {
  const [store, document, title, uri] = trace.documents[number];
  return { store, document, title, uri, name: title || document };
};
// Whether a token's neighbors are far: none is near, or none knows such a text. What stands in a
// passage word for word is near.
const isFar = (token, trace) => (token.near === false || trace.near === false)
  && !token.verbatim && !token.neighbors.some((one) => one.matched);

// Returns the state of a token under the settings that the answer was written with.
const traced = (token, trace) => ({
  ...token,
  text: token.token,
  id: token.token_id,
  share: token.influence,
  far: isFar(token, trace),
  documents: new Map(token.documents.map((one) => [one.document, one.share])),
  rival: token.by_memory && { ...token.by_memory, document: token.by_memory.document?.document ?? null },
  candidates: token.candidates.map((one) => ({ ...one, id: one.token_id })),
});

// Returns the trace in the format of the library, which Trace.load() reads.
const wholeTrace = (packed) => {
  const whole = (value) => {
    if (Array.isArray(value)) return value.map(whole);
    if (!value || typeof value !== "object") return value;
    const parts = Object.fromEntries(Object.entries(value).map(([name, part]) => [name, whole(part)]));
    if (typeof value.document !== "number") return parts;
    const { store, document, title, uri } = documentOf(packed, value.document);
    return { store, title, uri, ...parts, document };
  };
  const { near, alone, stores, documents, tokens, ...rest } = packed;
  const all = tokens.map(({ rest: _, ...token }) => ({
    ...whole(token),
    neighbors: whole(token.neighbors).map((one) => ({ ...one, snippet: one.before + one.word + one.after })),
  }));
  return {
    format: "knn-logits trace",
    version: 1,
    stores: stores ?? [],
    sequences: [{ ...rest, text: tokens.map((one) => one.token).join(""), tokens: all }],
  };
};
