// Computes the vote and the mixture under other settings, as knn_logits/distribution.py does:
//   w_i = softmax of -d_i / temperature + bonus_i,  p_kNN(y) = sum of w_i with value y,
//   p(y) = lmbda p_kNN(y) + (1 - lmbda) p_LM(y).

// A token counts as forbidden when its log-probability is lower than this, since exp of it is 0 in
// float64. A forbidden token gets no vote.
const FORBIDDEN = -745;

const numbers = (kind, text) => {
  const bytes = Uint8Array.from(atob(text), (one) => one.charCodeAt(0));
  return new kind(bytes.buffer);
};

// Unpacks the steps that the server packed (live.py).
const unpackLive = (packed) => {
  if (!packed) return null;
  const distances = numbers(Float32Array, packed.distances);
  const values = numbers(Uint16Array, packed.values);
  const documents = numbers(Uint16Array, packed.documents);
  const logs = numbers(Float32Array, packed.log_p_lm);
  const bonus = packed.bonus ? numbers(Float32Array, packed.bonus) : null;
  let start = 0;
  let log = 0;
  const steps = packed.counts.map((length, place) => {
    const log_p_lm = new Map();
    for (let one = start; one < start + length; one += 1)
      if (!log_p_lm.has(values[one])) log_p_lm.set(values[one], logs[log++]);
    packed.others[place].forEach(([token, log_p]) => log_p_lm.has(token) || log_p_lm.set(token, log_p));
    const step = {
      distances: distances.subarray(start, start + length),
      values: values.subarray(start, start + length),
      documents: documents.subarray(start, start + length),
      bonus: bonus?.subarray(start, start + length),
      log_p_lm,
    };
    start += length;
    return step;
  });
  return { ...packed, steps, place: new Map(packed.tokens.map(([id], place) => [id, place])) };
};

// Returns the votes of a step: the weight of each neighbor, and p_kNN by token. They do not depend
// on λ, so they are kept while only λ changes.
const votesOf = (live, step, { k, temperature }) => {
  if (step.votes?.k === k && step.votes.temperature === temperature) return step.votes;
  const used = k >= live.k ? step.values.length : Math.min(k, step.values.length);
  const sign = live.metric === "l2" ? -1 : 1;
  const weights = new Float64Array(used);
  let most = -Infinity;
  for (let one = 0; one < used; one += 1) {
    weights[one] = step.log_p_lm.get(step.values[one]) < FORBIDDEN ? -Infinity
      : (sign * (step.distances[one] - step.distances[0])) / temperature
        + (step.bonus?.[one] ?? 0);
    most = Math.max(most, weights[one]);
  }
  let total = 0;
  for (let one = 0; one < used; one += 1) {
    weights[one] = most > -Infinity ? Math.exp(weights[one] - most) : 0;
    total += weights[one];
  }
  const byToken = new Map();
  for (let one = 0; one < used; one += 1) {
    if (total > 0) weights[one] /= total;
    if (weights[one] > 0)
      byToken.set(step.values[one], (byToken.get(step.values[one]) ?? 0) + weights[one]);
  }
  step.votes = { k, temperature, weights, byToken };
  return step.votes;
};

// Returns the weights of the documents that vote for a token, the largest first. They are kept too.
const backersOf = (step, votes, place) => {
  votes.backers ??= new Map();
  if (!votes.backers.has(place)) {
    const found = new Map();
    votes.weights.forEach((weight, one) => {
      if (step.values[one] === place && weight > 0)
        found.set(step.documents[one], (found.get(step.documents[one]) ?? 0) + weight);
    });
    votes.backers.set(place, [...found].sort((one, two) => two[1] - one[1]));
  }
  return votes.backers.get(place);
};

// Returns the tokens that a step knows, each with its p_LM and p_kNN, and those that matter most: the
// chosen one and the model's favourite. They are kept as well.
const rowsOf = (live, step, votes, chosen) => {
  votes.rows ??= [...step.log_p_lm].map(([place, log]) => {
    const [id, token] = live.tokens[place];
    return { place, id, token, p_lm: Math.exp(log), p_knn: votes.byToken.get(place) ?? 0 };
  });
  const by = (name) => votes.rows.reduce((one, two) => (two[name] > one[name] ? two : one));
  votes.known ??= { mine: votes.rows.find((one) => one.id === chosen), favourite: by("p_lm") };
  return votes.rows;
};

// Returns the candidates with the largest p, the largest first. A whole sort would take longer.
const largest = (rows, lmbda, number) => {
  const found = [];
  let least = -1;
  for (const row of rows) {
    const p = lmbda * row.p_knn + (1 - lmbda) * row.p_lm;
    if (p <= least) continue;
    const place = found.findIndex((other) => other.p < p);
    found.splice(place < 0 ? found.length : place, 0, { ...row, p });
    if (found.length > number) found.pop();
    if (found.length === number) least = found.at(-1).p;
  }
  return found;
};

// Returns the state of a token, as `traced` does, under settings { lmbda, k, temperature }.
const mixed = (live, number, state, settings) => {
  const step = live.steps[number];
  const votes = votesOf(live, step, settings);
  const lmbda = votes.byToken.size ? settings.lmbda : 0;
  const rows = rowsOf(live, step, votes, state.id);
  const { mine, favourite } = votes.known;
  const listed = largest(rows, lmbda, 5);
  const [best] = listed;
  const of = (row) => listed.find((one) => one.id === row.id)
    ?? { ...row, p: lmbda * row.p_knn + (1 - lmbda) * row.p_lm };
  const chosen = of(mine);
  const share = chosen.p > 0 ? (lmbda * chosen.p_knn) / chosen.p : 0;
  const scale = chosen.p > 0 ? lmbda / chosen.p : 1;
  const documents = new Map(scale > 0 ? backersOf(step, votes, chosen.place)
    .map(([number, weight]) => [number, weight * scale]) : []);
  // What a passage says that the text quotes does not depend on the vote.
  const rival = lmbda > 0 ? state.rival : null;
  let meaning = "own";
  if (rival && !state.verbatim) meaning = "contradicted";
  else if (share >= LEAST && chosen.p > chosen.p_lm) meaning = favourite === mine ? "agreed" : "changed";
  for (const one of [of(favourite), chosen]) if (!listed.some((other) => other.id === one.id)) listed.push(one);
  return {
    ...state, p: chosen.p, p_lm: chosen.p_lm, p_knn: chosen.p_knn, lmbda, share, meaning,
    documents, rest: [0, 0], rival,
    candidates: listed, best: best.p > chosen.p ? best : null,
  };
};

// Finds the λ from which on, or below which, another token is the likeliest. Returns
// [{ from or below, token, id }]. The p of a token is a line over λ, and the likeliest token
// changes where two of these lines cross.
const turnsOf = (live, number, state, settings) => {
  const step = live.steps[number];
  const votes = votesOf(live, step, settings);
  if (!votes.byToken.size) return [];
  const lines = rowsOf(live, step, votes, state.id)
    .map(({ place, p_lm, p_knn }) => ({ place, at: p_lm, rise: p_knn - p_lm }));
  const mine = lines.find((one) => live.tokens[one.place][0] === state.id);
  const at = (line, lmbda) => line.at + lmbda * line.rise;
  const turns = [];
  for (const upward of [true, false]) {
    let found = null;
    for (const one of lines) {
      if (one === mine || at(one, settings.lmbda) > at(mine, settings.lmbda)) continue;
      const cross = (mine.at - one.at) / (one.rise - mine.rise);
      const beyond = upward ? cross >= settings.lmbda && cross < 1 : cross <= settings.lmbda && cross > 0;
      if (!beyond || !Number.isFinite(cross)) continue;
      if (!found || (upward ? cross < found.cross : cross > found.cross)) found = { cross, one };
    }
    if (!found) continue;
    const [id, token] = live.tokens[found.one.place];
    turns.push({ [upward ? "from" : "below"]: found.cross, id, token });
  }
  return turns;
};
