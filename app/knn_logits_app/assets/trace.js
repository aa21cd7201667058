// Unpacks a trace. The server numbers the documents and sends each only once (views.py).

const documentOf = (trace, number) => {
  const [store, document, title, uri] = trace.documents[number];
  return { store, document, title, uri, name: title || document };
};

// Returns the state of a token under the settings that the answer was written with.
const traced = (token) => ({
  ...token,
  text: token.token,
  id: token.token_id,
  share: token.influence,
  documents: new Map(token.documents.map((one) => [one.document, one.share])),
  rival: token.by_memory && { ...token.by_memory, document: token.by_memory.document?.document ?? null },
  candidates: token.candidates.map((one) => ({ ...one, id: one.token_id })),
});
