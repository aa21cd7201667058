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
