/**
 * The device's side of local privacy for browsers: one ES module without dependencies (docs/how-to/browser.md).
 *
 * `report` is all that leaves a device: the gradient of one record, clipped, on a public grid, with exact normal noise.
 * It is the `clipsilon.local.report` of Python, equal to the bit for the same gradient, budget and random words.
 * `Client` takes part in a service, and remembers what was spent before anything leaves.
 */

// ---------------------------------------------------------------------------------------------------------------------
// Random words

/** Return a function that returns the next 64 bits of the platform's cryptographic generator as a BigInt. */
export function systemWords() {
  const source = globalThis.crypto;
  if (typeof source?.getRandomValues !== "function") {
    throw new Error("this browser has no cryptographic random numbers; no report has left the device.");
  }
  const buffer = new BigUint64Array(64);
  let used = buffer.length;
  return () => {
    if (used === buffer.length) {
      source.getRandomValues(buffer);
      used = 0;
    }
    const word = buffer[used];
    buffer[used] = 0n;
    used += 1;
    return word;
  };
}

// ---------------------------------------------------------------------------------------------------------------------
// Exact normal noise: Z = ⌊2^32·N⌋ for a real standard normal N, in integer arithmetic alone. The names, the tables and
// the proof are those of clipsilon._core (exact_normal, normal_tables, bell_curve) and docs/proofs.md, "Exact normal
// noise". BigInts take the place of 31-bit limbs: they are wide enough by themselves.

const STRIPS = 1024;
const SQUEEZED = 1016; // slots from this one on lead above the squeezes
const TAIL = 2048; // the area that is proposed beyond 8
const CAPACITY = 2 ** 28;
const AREA = 2 ** 38 - 2 ** 31; // of all squeezes
const HEIGHT = 1705372967n; // the curve is HEIGHT·exp(−x²/2)
const PRECISION = 256n; // bits after the point, for the tables
const MARGIN = 4n; // heights closer to the estimate of the curve are not decided by it
const ONE = 1n << 32n;
const LIMB = 31n;

/** Return a lower bound on exp(−2^−15), close to the last of 256 bits. */
function lowerStep() {
  let [total, term, sign, k] = [0n, 1n << PRECISION, 1n, 0n];
  while (term > 0n) {
    [total, sign, k] = [total + sign * term, -sign, k + 1n];
    term = (term >> 15n) / k;
  }
  return total - 2n * k;
}

/** Return ⌊HEIGHT·exp(−x²/2)⌋ at x = i/128, i = 0, …, 1024. */
function curveHeights() {
  const step = lowerStep(); // exp(−x²/2) is its i²-th power
  let [value, factor] = [1n << PRECISION, step];
  const square = (step * step) >> PRECISION;
  const found = [];
  for (let i = 0; i <= STRIPS; i++) {
    found.push(Number((HEIGHT * value) >> PRECISION));
    [value, factor] = [(value * factor) >> PRECISION, (factor * square) >> PRECISION];
  }
  return found;
}

/** Return the alias table of some weights: the threshold of each slot, and the strip beyond it. */
function aliasTable(weights) {
  const left = [...weights];
  const thresholds = new Array(STRIPS).fill(CAPACITY);
  const others = left.map((_, slot) => slot);
  const slots = [...others];
  const small = slots.filter(slot => left[slot] < CAPACITY);
  const large = slots.filter(slot => left[slot] >= CAPACITY);
  while (small.length > 0) {
    const slot = small.pop();
    const donor = large.at(-1);
    thresholds[slot] = left[slot];
    others[slot] = donor;
    left[donor] -= CAPACITY - left[slot];
    if (left[donor] < CAPACITY) small.push(large.pop());
  }
  return { thresholds, others };
}

let cachedTables = null;

/** Return the tables of the sampler, computed at the first use: curve, lower, starts, and the alias table. */
export function normalTables() {
  if (cachedTables !== null) return cachedTables;
  const heights = curveHeights();
  const ends = heights.slice(1);
  const excess = ends.reduce((sum, end) => sum + end, 0) - AREA;
  const lower = ends.map((end, i) => end - (i < excess ? 1 : 0));
  const starts = [0];
  lower.forEach((low, i) => starts.push(starts[i] + heights[i] + 1 - low));
  const weights = lower.map((low, i) => (i < SQUEEZED ? low : CAPACITY));
  cachedTables = { curve: heights.slice(0, STRIPS), lower, starts, ...aliasTable(weights) };
  return cachedTables;
}

/** Return Z = ⌊2^32·N⌋ as a BigInt, from a function that returns random 64-bit words. */
export function integerNormal(words) {
  const { thresholds, others } = normalTables();
  for (;;) {
    const word = words();
    const slot = Number(word & 1023n);
    const strip = Number((word >> 10n) & 0xfffffffn) < thresholds[slot] ? slot : others[slot];
    const cell = strip < SQUEEZED ? (BigInt(strip) << 25n) | ((word >> 38n) & 0x1ffffffn) : aboveSqueeze(words);
    if (cell !== null) return word >> 63n ? -cell - 1n : cell; // ⌊−x⌋ = −⌊x⌋ − 1 unless x is an integer
  }
}

/** Return the cell of a point between squeeze and curve, or null if the point is rejected. */
function aboveSqueeze(words) {
  const { lower, starts } = normalTables();
  const word = words();
  const level = Number(word >> 33n);
  const place = word & 0x1ffffffn;
  if (level >= starts[STRIPS] + TAIL) return null;
  if (level >= starts[STRIPS]) return beyondStrips(words);
  let [strip, end] = [0, STRIPS];
  while (end - strip > 1) {
    const middle = (strip + end) >> 1;
    if (starts[middle] <= level) strip = middle;
    else end = middle;
  }
  const height = BigInt(lower[strip] + (level - starts[strip]));
  const estimate = estimateCurve(strip, place);
  const cell = (BigInt(strip) << 25n) | place;
  if (height + MARGIN <= estimate) return cell;
  if (height >= estimate + MARGIN || !isUnderCurve(words, cell, height, 1)) return null;
  return cell;
}

/** Return HEIGHT·exp(−x²/2) at the left end of a cell, with an error below 3. */
export function estimateCurve(strip, place) {
  const t = (place * ((BigInt(strip) << 26n) + place)) >> 33n;
  let series = ONE / 720n;
  for (const factorial of [120n, 24n, 6n, 2n, 1n, 1n]) series = ONE / factorial - ((series * t) >> 32n);
  return (BigInt(normalTables().curve[strip]) * series) >> 32n;
}

/** Return the cell of a point beyond 8 under the curve, or null; block b is [8b, 8b + 8). */
function beyondStrips(words) {
  let block = 1;
  for (;;) {
    const coin = words() >> 33n;
    if (coin >= 1n << 30n) break;
    if (coin > 0n) return null;
    block += 1;
  }
  const cell = (BigInt(block) << 35n) | (words() & ((1n << 35n) - 1n));
  return isUnderCurve(words, cell, 0n, block) ? cell : null;
}

/**
 * Return whether y < HEIGHT·exp(−x²/2) for a random point (x, y) of a box.
 *
 * x is uniform in [cell, cell + 1)·2^−32. The first `known` limbs of y·2^−31 are `height` and zeros, the others random.
 * Digits are drawn until they decide, so no approximation is left.
 */
export function isUnderCurve(words, cell, height, known) {
  const extend = (number, limbs) => {
    let result = number;
    for (let i = 0; i < limbs; i++) result = (result << LIMB) | (words() >> 33n);
    return result;
  };
  let exponent = 3n;
  while (cell >> (32n + exponent) > 0n) exponent += 1n;
  let x = (cell << (30n - exponent)) | (words() >> 33n) >> (1n + exponent);
  let y = height << (LIMB * BigInt(known - 1));
  let [ofX, ofY, size] = [2, known, Math.max(6, known + 2)];
  for (;;) {
    x = extend(x, size - ofX);
    y = extend(y, size - ofY);
    [ofX, ofY] = [size, size];
    const apart = bell(x, size, exponent) - y;
    if ((apart < 0n ? -apart : apart) >= 2n << exponent) return apart > 0n;
    size *= 2;
  }
}

/** Return HEIGHT·2^−31·exp(−(x·2^exponent)²/2) in units of the last limb of x, computed with three limbs more. */
function bell(x, size, exponent) {
  const wide = LIMB * BigInt(size + 3);
  const ones = (1n << wide) - 1n;
  const wideX = x << (3n * LIMB);
  const half = (wideX * wideX >> wide) / 2n;
  let value = ones;
  for (let divisor = BigInt(8 * (size + 3)); divisor > 0n; divisor--) {
    value = ones - (half * value >> wide) / divisor; // exp(−h) = 1 − h·(1 − h/2·(1 − h/3·(…)))
  }
  for (let i = 0n; i < 2n * exponent; i++) value = value * value >> wide;
  return (value * HEIGHT) >> (4n * LIMB);
}

// ---------------------------------------------------------------------------------------------------------------------
// Losses with bounded gradients. A gradient is clipped after it is computed, so privacy does not depend on how a
// platform rounds exp(): that changes what is reported in the last bit, not what is hidden.

/** Return the error function, by a series of positive terms. */
export function erf(x) {
  if (Math.abs(x) > 6) return Math.sign(x); // 1 to the last bit of a float64
  let [sum, term] = [x, x];
  for (let k = 1; Math.abs(term) > 1e-18 * Math.abs(sum); k++) {
    term *= (2 * x * x) / (2 * k + 1);
    sum += term;
  }
  return (2 / Math.sqrt(Math.PI)) * Math.exp(-x * x) * sum;
}

function mallowsLogistic() {
  return {
    labels: "binary",
    sensitivity: 2 * Math.sqrt(2),
    dimension: columns => columns,
    center: dimension => new Array(dimension).fill(0),
    gradient(theta, features, label) {
      let [margin, square] = [0, 0];
      features.forEach((x, j) => {
        margin += x * theta[j];
        square += x * x;
      });
      const decay = Math.exp(-Math.abs(margin)); // does not overflow
      const chance = (margin >= 0 ? 1 : decay) / (1 + decay);
      const rate = ((chance - label) * 2) / Math.max(2, square);
      return features.map(x => rate * x);
    },
  };
}

/** Return κ_c = E[min(Z², c²)] for Z ~ N(0, 1). */
function consistency(c) {
  const inside = erf(c / Math.sqrt(2));
  const density = Math.exp(-0.5 * c * c) / Math.sqrt(2 * Math.PI);
  return inside - 2 * c * density + c * c * (1 - inside);
}

function huberRegression({ c, least_scale: least }) {
  const kappa = consistency(c);
  return {
    labels: "real",
    sensitivity: Math.sqrt(8 * c ** 2 + 0.25 * c ** 4),
    dimension: columns => columns + 1,
    center: dimension => [...new Array(dimension - 1).fill(0), 0.5 * kappa - 0.25 * c ** 2],
    gradient(theta, features, label) {
      let [residual, square] = [label, 0];
      features.forEach((x, j) => {
        residual -= x * theta[j];
        square += x * x;
      });
      const last = theta[features.length];
      const scale = Math.max(last, least);
      const weight = 2 / Math.max(2, square);
      const inner = Math.min(Math.max(residual, -c * scale), c * scale) / scale;
      const ofScale = last < least ? c : inner;
      return [...features.map(x => -weight * inner * x), weight * 0.5 * (kappa - ofScale * ofScale)];
    },
  };
}

/** The losses that state their sensitivity, with the names of their parameters; all parameters are positive. */
export const LOSSES = new Map([
  ["MallowsLogistic", { parameters: [], build: mallowsLogistic }],
  ["HuberRegression", { parameters: ["c", "least_scale"], build: huberRegression }],
]);

/** Return the loss that a service names as {name, parameters}; throw unless it is known and its numbers make sense. */
export function lossOf(described) {
  const name = described?.name;
  const known = LOSSES.get(name);
  ensure(known, () => `loss must be one of ${[...LOSSES.keys()].join(", ")}, got ${short(name ?? described)}.`);
  const given = described.parameters;
  const keys = isObject(given) ? Object.keys(given) : [];
  const isComplete = keys.length === known.parameters.length && known.parameters.every(key => keys.includes(key));
  ensure(isObject(given) && isComplete,
    () => `parameters of ${name} must be exactly [${known.parameters.join(", ")}], got ${short(given)}.`);
  for (const [key, value] of Object.entries(given)) {
    ensure(isNumber(value) && value >= 1e-50 && value <= 1e50,
      () => `${key} must be a number from 1e-50 to 1e50, got ${short(value)}.`);
  }
  return known.build(given);
}

// ---------------------------------------------------------------------------------------------------------------------
// Reports

const LARGEST = 1e100; // beyond it, products could overflow
const LARGEST_MULTIPLE = 1n << 62n;
const LEAST_BUDGET = 1e-6;
const MOST_BUDGET = 1e6;

/**
 * Return the report of one record: all that leaves the device.
 *
 * @param {number[]} theta the published model
 * @param {{features: number[], label: number}} record the person's record, which stays on the device
 * @param {object} loss what `lossOf` returned
 * @param {number} mu the budget μ: the report is μ-GDP for the replacement of the record, whatever θ is
 * @param {function} [words] for tests only: whoever knows the words can subtract the noise
 * @returns {number[]}
 */
export function report(theta, record, loss, mu, words = systemWords()) {
  const { features, label } = checkRecord(record, loss);
  checkModel(theta, loss.dimension(features.length));
  const gradient = loss.gradient(theta, features, label);
  return release(gradient, loss.center(theta.length), loss.sensitivity, mu, words);
}

/**
 * Return center + g·(q + Z + ½): a gradient, clipped to the distance Δ/2 from the centre, on the grid g, with noise Z.
 *
 * @param {number[]} gradient any numbers; if they are not all finite, the centre takes their place
 * @param {number[]} center the public centre of the loss's gradients
 * @param {number} sensitivity Δ
 * @param {number} mu the budget μ
 * @param {function} words source of the noise
 * @returns {number[]}
 */
export function release(gradient, center, sensitivity, mu, words) {
  const scale = nextAbove(sensitivity / checkBudget(mu)); // not below Δ/μ
  const grid = gridOf(scale);
  const moved = gradient.map((x, j) => x - center[j]);
  const known = moved.every(Number.isFinite) ? moved : center.map(() => 0); // an error would tell of the record
  const multiples = clipToGrid(known, sensitivity / 2, scale);
  return multiples.map((q, j) => center[j] + (Number(q + integerNormal(words)) + 0.5) * grid);
}

/** Return the multiples of the grid of a noise scale: a vector, clipped to a bound and truncated toward zero. */
export function clipToGrid(vector, bound, scale) {
  const grid = gridOf(scale);
  if (!(bound >= 0 && bound <= scale * 2 ** 29)) throw new Error("bound must be between 0 and 2**29 times the scale.");
  if (!vector.every(Number.isFinite)) throw new Error("the gradient must be finite; no report has left the device.");
  const allowed = bound * (1 - (vector.length + 8) * 2 ** -52); // lowered by more than roundings can add
  const largest = vector.reduce((most, x) => Math.max(most, Math.abs(x)), 0);
  const direction = vector.map(x => x / (largest > 0 ? largest : 1)); // its squares cannot overflow
  const length = Math.sqrt(pairwiseSum(direction.map(x => x * x)));
  const factor = allowed / length;
  const kept = largest * length <= allowed ? vector : direction.map(x => x * factor);
  return kept.map(x => cut(BigInt(Math.trunc(x / grid))));
}

function cut(multiple) {
  if (multiple > LARGEST_MULTIPLE) return LARGEST_MULTIPLE;
  return multiple < -LARGEST_MULTIPLE ? -LARGEST_MULTIPLE : multiple;
}

/** Return the sum in the order in which NumPy adds, so that both sides agree to the bit. */
function pairwiseSum(values) {
  const n = values.length;
  if (n < 8) return values.reduce((sum, x) => sum + x, 0);
  if (n > 128) {
    const half = Math.floor(n / 2) - (Math.floor(n / 2) % 8);
    return pairwiseSum(values.slice(0, half)) + pairwiseSum(values.slice(half));
  }
  const r = values.slice(0, 8);
  const end = n - (n % 8);
  for (let i = 8; i < end; i++) r[i % 8] += values[i];
  const sum = r[0] + r[1] + (r[2] + r[3]) + (r[4] + r[5] + (r[6] + r[7]));
  return values.slice(end).reduce((total, x) => total + x, sum);
}

/** Return the spacing scale·2^−32 of the grid for noise of this standard deviation. */
function gridOf(scale) {
  const grid = scale / 2 ** 32;
  if (!(grid > 0 && grid < Infinity && grid * 2 ** 32 === scale)) {
    throw new Error(`scale must be a positive number of ordinary size, got ${scale}.`);
  }
  return grid;
}

/** Return the next float64 above a positive one. */
function nextAbove(x) {
  const bits = new BigUint64Array(1);
  const number = new Float64Array(bits.buffer);
  number[0] = x;
  bits[0] += 1n;
  return number[0];
}

/** Return how often a guess of which of two records, equally likely before, made a report is right at most: Φ(μ/2). */
export function guessingRate(mu) {
  return 0.5 + 0.5 * erf(mu / (2 * Math.SQRT2));
}

// ---------------------------------------------------------------------------------------------------------------------
// Checks. Messages never show the record.

function isNumber(value) {
  return typeof value === "number" && Number.isFinite(value);
}

function isObject(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function isModerate(value) {
  return isNumber(value) && Math.abs(value) <= LARGEST;
}

/** Return a value as text for a message. */
function short(value) {
  const text = JSON.stringify(value, (_, x) => (typeof x === "bigint" ? `${x}n` : x));
  return String(text ?? value).slice(0, 100);
}

/** Throw an error unless a condition holds; `message` is called only then. */
function ensure(condition, message, Kind = Error) {
  if (!condition) throw new Kind(message());
}

/** Return the budget μ; throw unless it is a number from 10^−6 to 10^6. */
export function checkBudget(mu, name = "mu") {
  ensure(isNumber(mu) && mu >= LEAST_BUDGET && mu <= MOST_BUDGET,
    () => `${name} must be a number from ${LEAST_BUDGET} to ${MOST_BUDGET}, got ${short(mu)}.`);
  return mu;
}

/** Return a copy of a record {features, label}; throw unless its numbers are what the loss takes. */
export function checkRecord(record, loss) {
  const features = Array.isArray(record?.features) ? [...record.features] : []; // a copy has no holes, which `every` skips
  const label = record?.label;
  ensure(features.length > 0 && features.every(isModerate),
    () => `features must be a list of numbers up to ${LARGEST}.`);
  if (loss.labels === "binary") ensure(label === 0 || label === 1, () => "label must be 0 or 1.");
  else ensure(isModerate(label), () => `label must be a number up to ${LARGEST}.`);
  return { features, label };
}

function checkModel(theta, dimension) {
  const found = () => (Array.isArray(theta) ? `${theta.length} numbers` : short(theta));
  ensure(Array.isArray(theta) && theta.length === dimension,
    () => `theta must hold ${dimension} number(s) for this record, got ${found()}.`);
  ensure(theta.every(isModerate), () => `theta must hold numbers up to ${LARGEST} only.`);
}

/** Return what a service asks for, with its loss and its number of features; throw unless all of it makes sense. */
export function checkTask(content) {
  const loss = lossOf(content.loss);
  const { dimension, features, most_budget: most } = content;
  ensure(Number.isInteger(dimension) && dimension >= 1 && dimension <= 1e6,
    () => `dimension must be an integer from 1 to 1e6, got ${short(dimension)}.`);
  const columns = dimension - (loss.dimension(1) - 1);
  const isNamed = Array.isArray(features) && features.length === columns && features.every(x => typeof x === "string");
  ensure(columns >= 1 && (features === null || isNamed),
    () => `features must be ${columns} names or null for dimension ${dimension}, got ${short(features)}.`);
  ensure(most === null || (isNumber(most) && most > 0),
    () => `most_budget must be a positive number or null, got ${short(most)}.`);
  ensure(typeof content.enrolment === "boolean",
    () => `enrolment must be true or false, got ${short(content.enrolment)}.`);
  return { loss, columns, features, enrolment: content.enrolment, mostBudget: most, repeats: content.repeats };
}

function checkTurn(content, dimension) {
  const { theta, version, seconds, ticket } = content;
  checkModel(theta, dimension);
  ensure(Number.isSafeInteger(version) && version >= 0,
    () => `version must be an integer from 0, got ${short(version)}.`);
  ensure(isNumber(seconds) && seconds >= 0, () => `seconds must be a number from 0, got ${short(seconds)}.`);
  ensure(typeof ticket === "string" && ticket.length <= 10_000, () => "ticket must be a string of ordinary length.");
  return { theta, version, seconds, ticket };
}

/** Throw unless a service would take this report. */
function checkRequest(task, record, token) {
  const { features } = checkRecord(record, task.loss);
  ensure(features.length === task.columns,
    () => `features must hold ${task.columns} number(s), got ${features.length}.`);
  ensure(token || !task.enrolment, () => "token must be given: this service admits enrolled people only.");
}

function checkUser(user) {
  ensure(typeof user === "string" && user.length >= 1 && user.length <= 200,
    () => "user must be a name of 1 to 200 characters.");
  return user;
}

/** Return the key of an account: a name in one form of Unicode. */
const keyOf = user => user.normalize("NFC");

// ---------------------------------------------------------------------------------------------------------------------
// What a person has spent: an account {revision, square, services}. `square` is Σμ² of all reports that were allowed to
// leave. For each service: a `pending` report without an answer, `lost` = √(Σμ²) of those that were refused since the
// last one that was not, and receipts.

const newAccount = () => ({ revision: 0, square: 0, services: {} });
const newService = () => ({ pending: null, lost: 0, receipts: [] });

const hasReported = service => service.receipts.length > 0 || service.lost > 0;

const isAmount = value => isNumber(value) && value >= 0;

function isService(service) {
  const { pending, lost, receipts } = service ?? {};
  const isSent = pending === null || (typeof pending?.body === "string" && isAmount(pending.mu));
  return isSent && isAmount(lost) && Array.isArray(receipts) && receipts.every(one => isAmount(one?.mu));
}

function checkAccount(account) {
  const isSound = isObject(account) && Number.isSafeInteger(account.revision) && isAmount(account.square);
  ensure(isSound && isObject(account.services) && Object.values(account.services).every(isService),
    () => "what this device has spent cannot be read; no report has left the device.");
  return account;
}

/** Return √(a² + b²), not below the real number: the budget of two reports. */
export function compose(a, b) {
  return b === 0 ? a : Math.sqrt(a * a + b * b) * (1 + 2 ** -51);
}

/** Return square + μ² for numbers of an account, not below the real number: no report is free. */
export function addSquare(square, mu) {
  const sum = square + mu * mu;
  const exact = BigInt(square * 2 ** 160) + BigInt(mu * 2 ** 80) ** 2n; // budgets are multiples of 2^−72
  return BigInt(sum * 2 ** 160) < exact ? nextAbove(sum) : sum;
}

/** Return √square for the number of an account, not below the real number. */
export function rootOf(square) {
  const root = Math.sqrt(square);
  return BigInt(root * 2 ** 80) ** 2n < BigInt(square * 2 ** 160) ? nextAbove(root) : root;
}

/**
 * Accounts in the browser's IndexedDB, by name.
 *
 * A change is one transaction: the browser makes all tabs take turns. It is asked to have the change on disk before the
 * promise resolves ("strict"), which is a hint: Firefox heeds it from version 126 on. After a power failure, others may
 * have forgotten the last change. localStorage does not even make tabs take turns.
 */
export class BrowserMemory {
  #opened = null;

  #open() {
    this.#opened ??= new Promise((resolve, reject) => {
      const request = globalThis.indexedDB.open("clipsilon", 1);
      request.onupgradeneeded = () => request.result.createObjectStore("accounts");
      request.onsuccess = () => resolve(request.result);
      request.onerror = () => reject(request.error);
    });
    return this.#opened;
  }

  async #transact(mode, action) {
    const database = await this.#open();
    return new Promise((resolve, reject) => {
      const transaction = database.transaction("accounts", mode, { durability: "strict" });
      const outcome = { value: undefined, problem: null };
      action(transaction.objectStore("accounts"), outcome, () => transaction.abort());
      transaction.oncomplete = () => resolve(outcome.value);
      transaction.onabort = () => reject(outcome.problem ?? transaction.error ?? new Error("nothing can be stored."));
    });
  }

  /** Replace the account of a user by decide(account), and return it; if `decide` throws, nothing is changed. */
  change(user, decide) {
    return this.#transact("readwrite", (store, outcome, abort) => {
      const request = store.get(user);
      request.onsuccess = () => {
        try {
          outcome.value = decide(request.result ?? null);
          store.put(outcome.value, user);
        } catch (problem) {
          outcome.problem = problem;
          abort();
        }
      };
    });
  }

  /** Return the account of a user, or null. */
  read(user) {
    return this.#transact("readonly", (store, outcome) => {
      const request = store.get(user);
      request.onsuccess = () => {
        outcome.value = request.result ?? null;
      };
    });
  }

  /** Return the names of all accounts. */
  users() {
    return this.#transact("readonly", (store, outcome) => {
      const request = store.getAllKeys();
      request.onsuccess = () => {
        outcome.value = request.result;
      };
    });
  }
}

/** The service refuses this person; no report has left the device. */
export class TurnError extends Error {}

/** The budget is spent: a further report would pass the limit, was not asked for, or the last one was refused. */
export class BudgetSpentError extends Error {}

/** No answer in time. If a report was sent, `join` sends the same bytes again. */
export class NoAnswerError extends Error {}

// ---------------------------------------------------------------------------------------------------------------------
// The client

const PAUSE = 200; // milliseconds before the second attempt; twice as many before each further one
const LONGEST_PAUSE = 10_000;
const TIMEOUT = 15_000; // milliseconds for one answer
const LARGEST_ANSWER = 2 ** 26; // characters
const FINAL = new Set([400, 409, 413, 422]); // refusals of a report that no repetition changes

/** Takes part in a service. It does not rely on the service for a person's privacy. */
export class Client {
  #root;
  #fetch;
  #memory;
  #limit;
  #patience;
  #words;

  /**
   * @param {string} url address of the service; https, or this machine
   * @param {object} [options]
   * @param {number} [options.limit] the most that one person spends on this device, as √(Σμ²); 3 by default
   * @param {number} [options.patience] seconds to retry; 60 by default
   * @param {object} [options.memory] where accounts are kept, as `BrowserMemory`
   * @param {function} [options.fetch] sends requests
   * @param {function} [options.words] for tests only
   */
  constructor(url, { limit = 3, patience = 60, memory = new BrowserMemory(), fetch = globalThis.fetch, words } = {}) {
    const place = new URL(url);
    const isLocal = ["localhost", "127.0.0.1", "[::1]"].includes(place.hostname);
    ensure(place.protocol === "https:" || (place.protocol === "http:" && isLocal),
      () => `url must begin with https://, unless it is this machine, got ${place.origin}: others could change the page.`);
    ensure(isNumber(patience) && patience > 0, () => `patience must be a positive number, got ${short(patience)}.`);
    this.#root = place.origin + place.pathname.replace(/\/+$/, "");
    this.#limit = checkBudget(limit, "limit");
    this.#patience = 1000 * patience;
    this.#memory = memory;
    this.#fetch = (...request) => fetch(...request);
    this.#words = words;
  }

  /** Return what the service asks for. */
  async task() {
    const answer = await this.#answer("GET", "/task");
    if (answer.status !== 200) throw new Error(`the service refused /task: ${reason(answer)}`);
    return checkTask(answer.content);
  }

  /** The most that one person spends on this device, as √(Σμ²). */
  get limit() {
    return this.#limit;
  }

  /**
   * Return what a user has spent on this device, as √(Σμ²).
   *
   * @param {string} user the person's name
   * @returns {Promise<{mu: number, pending: boolean, again: boolean, receipts: object[]}>} also whether a report waits
   *   for its answer, whether a further report must be asked for by `again`, and the receipts of this service
   */
  async spent(user) {
    const account = await this.#read(checkUser(user));
    const service = account.services[this.#root] ?? newService();
    const mu = rootOf(account.square);
    return { mu, pending: service.pending !== null, again: hasReported(service), receipts: service.receipts };
  }

  /** Return the names of those whose report waits for its answer. */
  async waiting() {
    const found = [];
    for (const user of await this.#memory.users()) {
      if ((await this.spent(user)).pending) found.push(user);
    }
    return found;
  }

  /**
   * Take part: fetch θ, and send one report. After a lost answer, the next call sends the same bytes again.
   *
   * @param {object} how
   * @param {string} how.user the person's name
   * @param {{features: number[], label: number}} how.record stays on the device
   * @param {number} how.mu the budget μ of this report
   * @param {string} [how.token] the enrolment token, if the service asks for one
   * @param {object} [how.task] what `task` returned and the person saw; fetched by default
   * @param {boolean} [how.again] allow a further report of the same person, which spends again
   * @returns {Promise<{sequence: number, version: number, mu: number}>} the receipt; `mu` is what was stated, which
   *   includes refused reports
   */
  async join({ user, record, mu, token = null, task = null, again = false }) {
    checkUser(user);
    checkBudget(mu);
    const before = await this.#read(user);
    if (before.services[this.#root]?.pending) return this.resend({ user, token });
    const asked = task ?? (await this.task());
    checkRequest(asked, record, token);
    this.#admit(before, user, mu, again, asked.mostBudget);
    const secret = hexToken();
    const turn = await this.#turn(user, secret, token, asked.loss.dimension(asked.columns));
    const values = report(turn.theta, record, asked.loss, mu, this.#words ?? systemWords());
    await this.#memory.change(keyOf(user), stored => {
      const account = checkAccount(stored ?? newAccount());
      ensure(account.revision === before.revision, () =>
        `another window has used the account of ${short(user)} meanwhile; no report has left this one.`, BudgetSpentError);
      const lost = this.#admit(account, user, mu, again, asked.mostBudget);
      const about = { user, token: secret, ticket: turn.ticket, version: turn.version, mu, report: values };
      const body = JSON.stringify(lost > 0 ? { ...about, lost } : about);
      return this.#debited(account, mu, { body, mu: compose(mu, lost) });
    });
    return this.resend({ user, token });
  }

  /**
   * Send the report that waits for its answer, the same bytes each time.
   *
   * @param {object} how
   * @param {string} how.user the person's name
   * @param {string} [how.token] the enrolment token, if the service asks for one
   * @returns {Promise<{sequence: number, version: number, mu: number}>} the receipt
   */
  async resend({ user, token = null }) {
    const pending = (await this.#read(checkUser(user))).services[this.#root]?.pending;
    ensure(pending,
      () => `no report of ${short(user)} waits for its answer; another window may have sent it.`, BudgetSpentError);
    const state = "the report may have been applied; take part again to send the same one";
    const answer = await this.#answer("POST", "/report", pending.body, token, state);
    if (answer.status === 200 || answer.content.code === "applied") return this.#confirm(user, pending, answer.content);
    if (!FINAL.has(answer.status)) throw new NoAnswerError(`${reason(answer)} The report is kept, to be sent again.`);
    await this.#settle(user, pending.body, () => ({ lost: pending.mu }));
    throw new BudgetSpentError(
      `the report left the device, so mu = ${pending.mu} is spent, but it was refused: ${reason(answer)}`);
  }

  /** Return the lost budget to state with a further report; throw unless the account allows one. */
  #admit(account, user, mu, again, most) {
    const service = account.services[this.#root] ?? newService();
    ensure(again === true || !hasReported(service),
      () => `again must be true for a second report of ${short(user)}, which spends again.`, BudgetSpentError);
    const total = compose(mu, rootOf(account.square));
    ensure(total <= this.#limit, () => `mu = ${mu} would bring what ${short(user)} spends to ${total.toPrecision(4)}, ` +
      `above the limit ${this.#limit}; no report has left the device.`, BudgetSpentError);
    const here = service.receipts.reduce((sum, one) => compose(sum, one.mu), compose(mu, service.lost));
    ensure(most === null || here <= most, () => `mu must keep ${short(user)} within ${most}, the most that this service ` +
      `takes from a person, got ${here.toPrecision(4)} in all; no report has left the device.`, BudgetSpentError);
    return service.lost;
  }

  #debited(account, mu, pending) {
    const service = account.services[this.#root] ?? newService();
    const services = { ...account.services, [this.#root]: { ...service, pending } };
    return { revision: account.revision + 1, square: addSquare(account.square, mu), services };
  }

  /** Settle the pending report with these bytes, unless another window has done so. */
  #settle(user, body, change) {
    return this.#memory.change(keyOf(user), stored => {
      const account = checkAccount(stored);
      const service = account.services[this.#root];
      if (service?.pending?.body !== body) return account;
      const services = { ...account.services, [this.#root]: { ...service, pending: null, ...change(service) } };
      return { ...account, revision: account.revision + 1, services };
    });
  }

  async #read(user) {
    return checkAccount((await this.#memory.read(keyOf(user))) ?? newAccount());
  }

  /** Return a turn that still holds: its time counts from before the request that was answered. */
  async #turn(user, secret, token, dimension) {
    const answer = await this.#answer("POST", "/turn", JSON.stringify({ user, token: secret }), token);
    if (answer.status !== 200) {
      throw new TurnError(`the service refused ${short(user)} before a report left the device: ${reason(answer)}`);
    }
    const turn = checkTurn(answer.content, dimension);
    if (performance.now() < answer.asked + 1000 * turn.seconds) return turn;
    throw new NoAnswerError("the turn came too late to be used; no report has left the device.");
  }

  /** Return the receipt of an applied report; nothing is cleared unless the answer makes sense. */
  async #confirm(user, pending, { sequence, version }) {
    ensure(Number.isSafeInteger(sequence) && sequence >= 1, () =>
      `sequence must be an integer from 1, got ${short(sequence)}; the report is kept, to be sent again.`, NoAnswerError);
    const receipt = { sequence, version: Number.isSafeInteger(version) ? version : null, mu: pending.mu };
    await this.#settle(user, pending.body, service => ({ lost: 0, receipts: [...service.receipts, receipt] }));
    return receipt;
  }

  /** Send a request until there is a lasting answer, the same bytes each time; throw NoAnswerError if patience ends. */
  async #answer(method, path, body, token, state = "no report has left the device") {
    const end = performance.now() + this.#patience;
    for (let pause = PAUSE; ; pause = Math.min(2 * pause, LONGEST_PAUSE)) {
      const answer = await this.#request(method, path, body, token);
      if (answer !== null && answer.status !== 429 && answer.status < 500) return answer;
      const spread = pause * (0.5 + 0.5 * Math.random()); // devices do not come back all at once
      const wait = Math.max(spread, 1000 * (answer?.wait ?? 0));
      if (performance.now() + wait > end) {
        const why = answer === null ? "" : ` (${reason(answer).replace(/\.$/, "")})`;
        throw new NoAnswerError(`no answer to ${path} within ${this.#patience / 1000} seconds${why}; ${state}.`);
      }
      await new Promise(resolve => setTimeout(resolve, wait));
    }
  }

  /** Send one request; return null if the answer is missing, incomplete or no JSON object. */
  async #request(method, path, body, token) {
    const headers = body === undefined ? {} : { "Content-Type": "application/json" };
    if (token) headers.Authorization = `Bearer ${token}`;
    const how = { redirect: "error", credentials: "omit", cache: "no-store", referrerPolicy: "no-referrer" };
    const asked = performance.now();
    try {
      const signal = AbortSignal.timeout(TIMEOUT);
      const answer = await this.#fetch(this.#root + path, { method, body, headers, signal, ...how });
      const content = JSON.parse(await readText(answer));
      const wait = Number(answer.headers.get("Retry-After")) || 0;
      return isObject(content) ? { status: answer.status, content, wait, asked } : null;
    } catch {
      return null;
    }
  }
}

function reason(answer) {
  const said = answer.content.error;
  return typeof said === "string" ? said.slice(0, 500) : `status ${answer.status}.`;
}

function hexToken() {
  const bytes = globalThis.crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, byte => byte.toString(16).padStart(2, "0")).join("");
}

/** Return the text of an answer; throw if it is too long. */
async function readText(answer) {
  const decoder = new TextDecoder("utf-8", { fatal: true });
  const reader = answer.body.getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return text + decoder.decode();
    text += decoder.decode(value, { stream: true });
    if (text.length > LARGEST_ANSWER) {
      await reader.cancel();
      throw new Error("the answer is too long.");
    }
  }
}
