// Computes the vote and the mixture under other settings, as knn_logits/distribution.py does:
//   w_i = softmax of -d_i / temperature,  p_kNN(y) = sum of w_i with value y,
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
      log_p_lm,
    };
    start += length;
    return step;
  });
  return { ...packed, steps, place: new Map(packed.tokens.map(([id], place) => [id, place])) };
};

// Returns the votes of a step: the weight of each neighbor, and p_kNN by token.
const votesOf = (live, step, { k, temperature }) => {
  const used = k >= live.k ? step.values.length : Math.min(k, step.values.length);
  const sign = live.metric === "l2" ? -1 : 1;
  const weights = new Float64Array(used);
  let total = 0;
  for (let one = 0; one < used; one += 1) {
    if (step.log_p_lm.get(step.values[one]) < FORBIDDEN) continue;
    weights[one] = Math.exp((sign * (step.distances[one] - step.distances[0])) / temperature);
    total += weights[one];
  }
  const byToken = new Map();
  for (let one = 0; one < used; one += 1) {
    if (total > 0) weights[one] /= total;
    if (weights[one] > 0)
      byToken.set(step.values[one], (byToken.get(step.values[one]) ?? 0) + weights[one]);
  }
  return { weights, byToken };
};

// Returns the state of a token, as `traced` does, under settings { lmbda, k, temperature }.
const mixed = (live, number, state, settings) => {
  const step = live.steps[number];
  const { weights, byToken } = votesOf(live, step, settings);
  const lmbda = byToken.size ? settings.lmbda : 0;
  const all = [...step.log_p_lm].map(([place, log]) => {
    const p_lm = Math.exp(log);
    const p_knn = byToken.get(place) ?? 0;
    const [id, token] = live.tokens[place];
    return { place, id, token, p_lm, p_knn, p: lmbda * p_knn + (1 - lmbda) * p_lm };
  });
  const chosen = all.find((one) => one.id === state.id);
  const by = (name) => all.reduce((one, two) => (two[name] > one[name] ? two : one));
  const favourite = by("p_lm");
  const told = by("p_knn");
  const rival = told.p_knn > 0 && told !== chosen ? told : null;
  const share = chosen.p > 0 ? (lmbda * chosen.p_knn) / chosen.p : 0;
  const documents = new Map();
  let against = new Map();
  weights.forEach((weight, one) => {
    const token = step.values[one];
    const into = token === chosen.place ? documents : token === rival?.place ? against : null;
    const part = token === chosen.place && chosen.p > 0 ? (lmbda * weight) / chosen.p : weight;
    if (into && part > 0) into.set(step.documents[one], (into.get(step.documents[one]) ?? 0) + part);
  });
  let meaning = "own";
  if (rival && rival.p_knn > MAJORITY && lmbda * rival.p_knn > Math.max(chosen.p, LEAST)) meaning = "contradicted";
  else if (share >= LEAST && chosen.p > chosen.p_lm) meaning = favourite === chosen ? "agreed" : "changed";
  const strongest = (map) => [...map].sort((one, two) => two[1] - one[1]);
  const best = by("p");
  const candidates = all.sort((one, two) => two.p - one.p);
  const listed = candidates.slice(0, 5);
  for (const one of [favourite, chosen]) if (!listed.includes(one)) listed.push(one);
  return {
    ...state, p: chosen.p, p_lm: chosen.p_lm, p_knn: chosen.p_knn, lmbda, share, meaning,
    documents: new Map(strongest(documents)), rest: [0, 0],
    rival: rival && { token: rival.token, p: rival.p_knn, document: strongest(against)[0]?.[0] ?? null },
    candidates: listed, best: best.p > chosen.p ? best : null,
  };
};

// Finds the λ from which on, or below which, another token is the likeliest. Returns
// [{ from or below, token, id }]. The p of a token is a line over λ, and the likeliest token
// changes where two of these lines cross.
const turnsOf = (live, number, state, settings) => {
  const step = live.steps[number];
  const { byToken } = votesOf(live, step, settings);
  if (!byToken.size) return [];
  const lines = [...step.log_p_lm].map(([place, log]) =>
    ({ place, at: Math.exp(log), rise: (byToken.get(place) ?? 0) - Math.exp(log) }));
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
