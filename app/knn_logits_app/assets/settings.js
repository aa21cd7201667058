// What the browser knows of the server, and the controls' values that are the documents' own settings.

// { stores: each datastore's own settings, names: of the settings, bytes, files, suffixes: of uploads }
let server = { stores: {}, names: [], bytes: Infinity, files: Infinity, suffixes: [] };
// The names of the settings among the values of a form.
let names = ["lmbda", "k", "temperature"];

// Returns the settings of the first datastore that is chosen. A visitor's text has those of the first.
const own = (stores) => [...(server.stores[stores?.[0]] ?? Object.values(server.stores)[0] ?? [])];
