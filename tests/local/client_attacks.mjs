// Attempts to make the browser's client spend twice, or say more than its report. Run by test_client_attacks.py.

import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { addSquare, BudgetSpentError, Client, NoAnswerError, rootOf, TurnError } from "./client.mjs";

const attacks = [];
const test = (name, attack) => attacks.push([name, attack]);

const URL = "https://service.example/root/";
const KEY = "https://service.example/root";
const TASK = {
  loss: { name: "MallowsLogistic", parameters: {} }, dimension: 2, features: ["age", "income"], batch: 1,
  round_seconds: 10, enrolment: false, most_budget: null, repeats: "compose",
};
const RECORD = { features: [0.123456, -7.654321], label: 1 };
const ANN = { user: "ann", record: RECORD, mu: 1 };

/** Accounts that outlive a client, as a browser's: each change is atomic, and takes a moment. */
class Memory {
  accounts = new Map();
  #last = Promise.resolve();

  change(user, decide) {
    const done = this.#last.then(async () => {
      await new Promise(resolve => setTimeout(resolve, 1));
      const next = decide(structuredClone(this.accounts.get(user)) ?? null);
      this.accounts.set(user, structuredClone(next));
      return next;
    });
    this.#last = done.catch(() => {});
    return done;
  }

  async read(user) {
    return structuredClone(this.accounts.get(user)) ?? null;
  }

  async users() {
    return [...this.accounts.keys()];
  }
}

const json = (content, status = 200, headers = {}) => new Response(JSON.stringify(content), { status, headers });

/** A service as agreed; `hooks` replace or lose its answers. */
class Service {
  requests = [];
  applied = []; // bodies of reports
  theta = [0.5, -0.25];
  task = TASK;

  constructor(hooks = {}) {
    this.hooks = hooks;
    this.fetch = async (url, options) => {
      const path = url.slice(KEY.length);
      this.requests.push({ path, body: options.body, options });
      const answer = this.#answer(path, options.body);
      const hook = this.hooks[path];
      return hook ? hook(answer, this.sent(path).length, options) : answer;
    };
  }

  sent(path) {
    return this.requests.filter(request => request.path === path);
  }

  #answer(path, body) {
    if (path === "/task") return json(this.task);
    if (path === "/turn") return json({ theta: this.theta, version: 3, seconds: 60, ticket: `t${this.requests.length}` });
    const known = this.applied.indexOf(body);
    if (known >= 0) return json({ code: "applied", error: "it is in the ledger.", sequence: known + 1 }, 409);
    this.applied.push(body);
    return json({ sequence: this.applied.length, version: 3 });
  }
}

function make(hooks, options = {}) {
  const service = new Service(hooks);
  const memory = options.memory ?? new Memory();
  const client = new Client(URL, { fetch: service.fetch, memory, patience: 30, ...options });
  return { service, memory, client };
}

const bodies = service => new Set(service.sent("/report").map(request => request.body));
const lost = () => { throw new TypeError("network"); };

test("one report leaves, after it was written down", async () => {
  let seen = null;
  const { client, service, memory } = make({ "/report": answer => {
    seen = structuredClone(memory.accounts.get("ann"));
    return answer;
  } });
  assert.deepEqual(await client.join(ANN), { sequence: 1, version: 3, mu: 1 });
  assert.equal(seen.square, 1);
  assert.equal(seen.services[KEY].pending.body, service.applied[0]);
  assert.deepEqual(service.requests.map(request => request.path), ["/task", "/turn", "/report"]);
  const sent = JSON.parse(service.applied[0]);
  assert.deepEqual(Object.keys(sent), ["user", "token", "ticket", "version", "mu", "report"]);
  assert.equal(sent.report.length, 2);
  assert.deepEqual(Object.keys(JSON.parse(service.sent("/turn")[0].body)), ["user", "token"]);
  for (const { options } of service.requests) {
    assert.equal(options.redirect, "error"); // nothing goes elsewhere
    assert.equal(options.credentials, "omit");
  }
  assert.deepEqual(await client.spent("ann"), { mu: 1, pending: false, again: true, receipts: [{ sequence: 1, version: 3, mu: 1 }] });
  assert.deepEqual((await client.spent("bob")).mu, 0);
});

const FAULTS = {
  "no answer": lost,
  "a page in between": () => new Response("<html>Welcome to the hotel</html>"),
  "half an answer": () => new Response('{"sequence": 1'),
  "a list": () => json([1]),
  "null": () => json(null),
  "nothing": () => new Response(null, { status: 204 }),
  "an error of a proxy": () => new Response("bad gateway", { status: 502 }),
  "busy": () => json({ code: "busy", error: "later." }, 503, { "Retry-After": "0" }),
  "too many requests": () => json({ code: "many", error: "later." }, 429),
};

for (const [name, fault] of Object.entries(FAULTS)) {
  test(`the same bytes are sent after a lost answer: ${name}`, async () => {
    const { client, service, memory } = make({ "/report": (answer, number) => (number < 3 ? fault() : answer) });
    assert.equal((await client.join(ANN)).sequence, 1);
    assert.equal(service.sent("/report").length, 3);
    assert.equal(bodies(service).size, 1);
    assert.equal(service.sent("/turn").length, 1);
    assert.equal(memory.accounts.get("ann").square, 1);
  });
}

for (const [name, content] of Object.entries({
  "missing": {}, "zero": { sequence: 0 }, "text": { sequence: "1" }, "fraction": { sequence: 1.5 }, "null": { sequence: null },
})) {
  test(`an answer without a number of the report keeps it: ${name}`, async () => {
    const { client, service, memory } = make({ "/report": () => json(content) });
    await assert.rejects(client.join(ANN), /sequence must be an integer from 1, got .*; the report is kept/);
    await assert.rejects(client.join({ ...ANN, again: true }), NoAnswerError);
    service.hooks = {};
    assert.equal((await client.join({ ...ANN, mu: 2 })).mu, 1);
    assert.equal(bodies(service).size, 1);
    assert.equal(memory.accounts.get("ann").square, 1);
  });
}

test("a reload between writing and sending leads to the same bytes, whatever has changed since", async () => {
  const { client, service, memory } = make({ "/report": lost }, { patience: 0.5 });
  await assert.rejects(client.join(ANN), /no answer to .report within 0.5 seconds; the report may have been applied; take part again/);
  const first = bodies(service);
  const later = new Service();
  later.theta = [9, 9];
  later.task = { ...TASK, loss: { name: "HuberRegression", parameters: { c: 1, least_scale: 0.1 } }, dimension: 3 };
  const reloaded = new Client(URL, { fetch: later.fetch, memory });
  assert.deepEqual(await reloaded.waiting(), ["ann"]);
  const other = { user: "ann", record: { features: [5, 5], label: 0 }, mu: 2.5, again: true };
  assert.deepEqual(await reloaded.join(other), { sequence: 1, version: 3, mu: 1 });
  assert.deepEqual(bodies(later), first);
  assert.deepEqual(later.requests.map(request => request.path), ["/report"]);
  assert.deepEqual(await reloaded.waiting(), []);
  assert.equal(memory.accounts.get("ann").square, 1);
});

test("nothing leaves if it cannot be written down", async () => {
  const memory = new Memory();
  memory.change = async () => { throw new Error("the disk is full"); };
  const { client, service } = make({}, { memory });
  await assert.rejects(client.join(ANN), /the disk is full/);
  assert.equal(service.sent("/report").length, 0);
  const without = new Client(URL, { fetch: service.fetch }); // Node has no IndexedDB
  await assert.rejects(without.join(ANN));
  assert.equal(service.sent("/report").length, 0);
});

test("ten windows at once send one report", async () => {
  const memory = new Memory();
  const service = new Service();
  const windows = Array.from({ length: 10 }, () => new Client(URL, { fetch: service.fetch, memory }));
  const outcomes = await Promise.allSettled(windows.map(one => one.join(ANN)));
  assert.equal(outcomes.filter(one => one.status === "fulfilled").length, 1);
  for (const one of outcomes) {
    if (one.status === "rejected") assert.match(one.reason.message, /another window .* no report has left this one/);
  }
  assert.equal(bodies(service).size, 1);
  assert.equal(memory.accounts.get("ann").square, 1);
});

test("a late answer to a repeated report does not clear the next one", async () => {
  const { client, service, memory } = make({ "/report": lost }, { patience: 0.5 });
  await assert.rejects(client.join(ANN), NoAnswerError);
  let open = null;
  const gate = new Promise(resolve => { open = resolve; });
  const slow = new Client(URL, { memory, fetch: async (...request) => {
    const answer = await service.fetch(...request);
    await gate;
    return answer;
  } });
  service.hooks = {};
  const late = slow.resend({ user: "ann" });
  await client.resend({ user: "ann" });
  service.hooks = { "/report": lost };
  await assert.rejects(client.join({ ...ANN, again: true }), NoAnswerError);
  open();
  assert.equal((await late).sequence, 1);
  const { pending, receipts } = await client.spent("ann");
  assert.deepEqual([pending, receipts.length], [true, 1]);
  assert.equal(bodies(service).size, 2);
  assert.equal(memory.accounts.get("ann").square, 2);
});

test("a window that asks again while the other waits for its turn does not send either", async () => {
  const memory = new Memory();
  const service = new Service();
  const [one, other] = [0, 1].map(() => new Client(URL, { fetch: service.fetch, memory }));
  await one.join(ANN);
  await Promise.allSettled([one.join({ ...ANN, again: true }), other.join({ ...ANN, again: true })]);
  assert.equal(bodies(service).size, 2);
  assert.equal(memory.accounts.get("ann").square, 2);
});

test("a second report needs to be asked for, and the limit holds", async () => {
  const { client, service, memory } = make({}, { limit: 1.5 });
  await client.join(ANN);
  for (const again of [false, "yes", 1, undefined]) {
    await assert.rejects(client.join({ ...ANN, again }), /again must be true for a second report of "ann"/);
  }
  await client.join({ ...ANN, again: true }); // √2
  await assert.rejects(client.join({ ...ANN, mu: 0.6, again: true }), /to 1.536, above the limit 1.5; no report has left/);
  assert.equal(service.applied.length, 2);
  assert.equal((await client.spent("ann")).mu, Math.SQRT2);
  const elsewhere = new Client("https://service.example/other", { fetch: service.fetch, memory, limit: 1.5 });
  const task = await client.task();
  await assert.rejects(elsewhere.join({ ...ANN, task }), /above the limit 1.5/); // one limit for all services
  await assert.rejects(make({}).client.join({ ...ANN, mu: 3.1 }), /above the limit 3/);
});

test("the most that a service takes from a person is kept to before anything leaves", async () => {
  const { client, service } = make({});
  service.task = { ...TASK, most_budget: 1.3 };
  await assert.rejects(client.join({ ...ANN, mu: 1.4 }), /within 1.3, the most that this service takes/);
  await client.join(ANN);
  await assert.rejects(client.join({ ...ANN, again: true }), /got 1.414 in all; no report has left/);
  service.hooks["/report"] = () => json({ code: "stale", error: "the round has closed." }, 409);
  await assert.rejects(client.join({ ...ANN, mu: 0.6, again: true }), /is spent, but it was refused/);
  await assert.rejects(client.join({ ...ANN, mu: 0.6, again: true }), /got 1.311 in all; no report has left/);
  assert.equal(bodies(service).size, 2);
});

test("no report is free, however small", async () => {
  const { client, memory } = make({}, { limit: 1e6 });
  await client.join({ ...ANN, mu: 9e5 });
  const { square } = memory.accounts.get("ann");
  await client.join({ ...ANN, mu: 1e-6, again: true }); // to the nearest float, the sum of squares stays as it is
  assert.ok(memory.accounts.get("ann").square > square);
  let [sum, exact] = [0, 0n];
  for (let k = 1; k <= 200; k++) {
    const mu = Math.sqrt(k) / 7;
    [sum, exact] = [addSquare(sum, mu), exact + BigInt(mu * 2 ** 80) ** 2n];
    assert.ok(BigInt(sum * 2 ** 160) >= exact);
    assert.ok(BigInt(rootOf(sum) * 2 ** 80) ** 2n >= exact);
  }
});

test("a refused report is spent, and the next one states both", async () => {
  const refuse = () => json({ code: "stale", error: "the round has closed." }, 409);
  const { client, service, memory } = make({ "/report": refuse });
  await assert.rejects(client.join(ANN), problem =>
    problem instanceof BudgetSpentError && /mu = 1 is spent, but it was refused: the round has closed/.test(problem.message));
  assert.equal(memory.accounts.get("ann").square, 1);
  service.hooks = {};
  await assert.rejects(client.join(ANN), /again must be true/);
  const receipt = await client.join({ ...ANN, mu: 0.75, again: true });
  assert.ok(receipt.mu >= 1.25 && receipt.mu < 1.25 * (1 + 1e-15));
  const { mu, lost } = JSON.parse(service.applied.at(-1));
  assert.deepEqual([mu, lost], [0.75, 1]);
  assert.equal(memory.accounts.get("ann").square, 1.5625);
});

test("a wrong enrolment token does not cost the report", async () => {
  const check = (answer, _, options) =>
    options.headers.Authorization === "Bearer right" ? answer : json({ code: "unauthorised", error: "not enrolled." }, 401);
  const { client, service, memory } = make({ "/report": check });
  service.task = { ...TASK, enrolment: true };
  await assert.rejects(client.join(ANN), /token must be given/);
  await assert.rejects(client.join({ ...ANN, token: "wrong" }), /not enrolled. The report is kept/);
  service.hooks["/turn"] = check;
  assert.equal((await client.join({ ...ANN, token: "right" })).mu, 1);
  assert.equal(bodies(service).size, 1);
  assert.equal(memory.accounts.get("ann").square, 1);
  await assert.rejects(client.join({ ...ANN, user: "bob", token: "wrong" }), problem =>
    problem instanceof TurnError && /before a report left the device: not enrolled/.test(problem.message));
});

for (const mu of [NaN, Infinity, -Infinity, 0, -1, 1e-7, 1e7, "1", null, undefined, true, [1], {}, 1n]) {
  test(`no request is made for mu = ${typeof mu} ${String(mu)}`, async () => {
    const { client, service } = make({});
    const label = typeof mu === "bigint" ? /.*/ : /mu must be a number from/;
    await assert.rejects(client.join({ ...ANN, mu }), label);
    assert.equal(service.requests.length, 0);
  });
}

const RECORDS = [
  null, [1, 2], { features: [1, 2] }, { features: [1, 2], label: 2 }, { features: [1, 2], label: "1" },
  { features: [1], label: 1 }, { features: [1, 2, 3], label: 1 }, { features: [1, NaN], label: 1 },
  { features: [1, Infinity], label: 1 }, { features: [1, "2"], label: 1 }, { features: [1, 2e100], label: 1 },
  { features: [1, , 2], label: 1 }, { features: [, 2], label: 1 }, { features: [], label: 1 }, { features: "12", label: 1 }, { features: [1, null], label: 0 },
];

test("a wrong record is refused before anything leaves, and is not shown", async () => {
  for (const record of RECORDS) {
    const { client, service, memory } = make({});
    await assert.rejects(client.join({ ...ANN, record }), problem =>
      /^(features|label) must/.test(problem.message) && !/2e\+?100|NaN|Infinity/.test(problem.message));
    assert.equal(service.sent("/turn").length, 0);
    assert.equal(memory.accounts.size, 0);
  }
});

const TASKS = {
  "an unknown loss": { loss: { name: "Logistic", parameters: {} } },
  "a name of every object": { loss: { name: "constructor", parameters: {} } },
  "its prototype": { loss: { name: "__proto__", parameters: {} } },
  "no loss": { loss: null },
  "a name that is a list": { loss: { name: ["MallowsLogistic"], parameters: {} } },
  "no parameters": { loss: { name: "MallowsLogistic" } },
  "a parameter too many": { loss: { name: "MallowsLogistic", parameters: { c: 1 } } },
  "a parameter too few": { loss: { name: "HuberRegression", parameters: { c: 1 } }, dimension: 3 },
  "a negative one": { loss: { name: "HuberRegression", parameters: { c: -1, least_scale: 0.1 } }, dimension: 3 },
  "two names in one": { loss: { name: "HuberRegression", parameters: { "c,least_scale": 1 } }, dimension: 3 },
  "a huge one": { loss: { name: "HuberRegression", parameters: { c: 1e90, least_scale: 0.1 } }, dimension: 3 },
  "a text": { loss: { name: "HuberRegression", parameters: { c: "1", least_scale: 0.1 } }, dimension: 3 },
  "another dimension": { dimension: 3 },
  "a fraction": { dimension: 2.5 },
  "no dimension": { dimension: null },
  "names of another length": { features: ["age"] },
  "names that are numbers": { features: [1, 2] },
  "a budget of zero": { most_budget: 0 },
  "a budget in words": { most_budget: "1" },
  "enrolment in words": { enrolment: "false" },
};

test("a task that makes no sense is refused before anything leaves", async () => {
  for (const [name, change] of Object.entries(TASKS)) {
    const { client, service, memory } = make({});
    service.task = { ...TASK, ...change };
    await assert.rejects(client.join(ANN), / must /, name);
    assert.equal(service.sent("/turn").length, 0, name);
    assert.equal(memory.accounts.size, 0, name);
  }
});

const TURNS = {
  "a short model": { theta: [1] }, "a long one": { theta: [1, 2, 3] }, "no model": { theta: null },
  "texts": { theta: ["1", "2"] }, "nothing in it": { theta: [null, 1] }, "a huge one": { theta: [1e200, 1] },
  "no version": { version: null }, "a negative version": { version: -1 }, "a fraction": { version: 0.5 },
  "no time": { seconds: -1 }, "endless time": { seconds: "60" }, "no ticket": { ticket: null },
  "a long ticket": { ticket: "t".repeat(20_000) },
};

test("a turn that makes no sense is refused before anything leaves", async () => {
  for (const [name, change] of Object.entries(TURNS)) {
    const good = { theta: [0, 0], version: 1, seconds: 60, ticket: "t" };
    const { client, service, memory } = make({ "/turn": () => json({ ...good, ...change }) });
    await assert.rejects(client.join(ANN), / must /, name);
    assert.equal(service.sent("/report").length, 0, name);
    assert.equal(memory.accounts.size, 0, name);
  }
  const infinite = make({ "/turn": () => new Response('{"theta": [1e999, 0], "version": 1, "seconds": 9, "ticket": ""}') });
  await assert.rejects(infinite.client.join(ANN), /theta must hold numbers/);
  const busy = make({ "/turn": () => json({ code: "busy", error: "there is no place now." }, 503) }, { patience: 0.5 });
  await assert.rejects(busy.client.join(ANN), /\/turn within 0.5 seconds \(there is no place now\); no report has left/);
  const began = performance.now();
  const queued = make({ "/turn": async (answer, number) => {
    if (number < 5) return json({ code: "busy", error: "there is no place now." }, 503);
    return json({ ...(await answer.json()), seconds: 0.9 * (performance.now() - began) / 1000 }); // less than the wait
  } });
  assert.equal((await queued.client.join(ANN)).sequence, 1);
  const late = make({ "/turn": async answer => {
    await new Promise(resolve => setTimeout(resolve, 30));
    return json({ ...(await answer.json()), seconds: 0.01 });
  } });
  await assert.rejects(late.client.join(ANN), /came too late to be used; no report has left/);
  assert.equal(late.service.sent("/report").length, 0);
});

test("the loss that the person saw is used, whatever the service says later", async () => {
  const { client, service } = make({});
  const task = await client.task();
  service.task = { ...TASK, loss: { name: "HuberRegression", parameters: { c: 50, least_scale: 0.1 } }, dimension: 3 };
  await client.join({ ...ANN, task });
  assert.deepEqual(service.requests.map(request => request.path), ["/task", "/turn", "/report"]);
  service.theta = [1, 2, 3]; // of the other loss
  await assert.rejects(client.join({ ...ANN, task, again: true }), /theta must hold 2 number/);
});

const SERVICES = [
  null, {}, { pending: null, receipts: [] }, { pending: null, lost: NaN, receipts: [] },
  { pending: null, lost: -1, receipts: [] }, { pending: null, lost: Infinity, receipts: [] },
  { pending: null, lost: 0, receipts: [{ mu: NaN }] }, { pending: { body: "x" }, lost: 0, receipts: [] },
];

test("an account that cannot be read stops everything", async () => {
  for (const account of [1, [], {}, { revision: 0, square: -1, services: {} }, { revision: 0, square: NaN, services: {} },
    { revision: "0", square: 0, services: {} }, { revision: 0, square: 0, services: null },
    ...SERVICES.map(service => ({ revision: 1, square: 1, services: { [KEY]: service } }))]) {
    const { client, service, memory } = make({});
    memory.accounts.set("ann", account);
    await assert.rejects(client.join(ANN), /what this device has spent cannot be read; no report has left/);
    assert.equal(service.requests.length, 0);
  }
});

test("an endless answer is cut off", async () => {
  const piece = new TextEncoder().encode(" ".repeat(2 ** 22));
  let pieces = 0;
  const endless = () => new Response(new ReadableStream({ pull(controller) {
    pieces += 1;
    controller.enqueue(piece);
  } }));
  const { client, service } = make({ "/turn": (answer, number) => (number === 1 ? endless() : answer) });
  assert.equal((await client.join(ANN)).sequence, 1);
  assert.ok(pieces < 25);
  assert.equal(service.sent("/turn").length, 2);
});

test("only https, or this machine, and only sound options", () => {
  for (const url of ["http://service.example", "ftp://service.example", "javascript:alert(1)", "service", ""]) {
    assert.throws(() => new Client(url, { memory: new Memory() }));
  }
  for (const url of ["https://a.example/x", "http://localhost:8000", "http://127.0.0.1:1/", "http://[::1]:8000"]) {
    assert.ok(new Client(url, { memory: new Memory() }));
  }
  for (const options of [{ limit: NaN }, { limit: 0 }, { limit: Infinity }, { patience: 0 }, { patience: NaN }]) {
    assert.throws(() => new Client(URL, { memory: new Memory(), ...options }), /must be/);
  }
});

test("names that are objects of JavaScript are names", async () => {
  const { client, memory } = make({});
  for (const user of ["__proto__", "constructor", "ann\nbob"]) {
    await client.join({ ...ANN, user });
    await assert.rejects(client.join({ ...ANN, user }), /again must be true/);
    assert.equal(memory.accounts.get(user).square, 1);
  }
  await client.join({ ...ANN, user: "Zo\u00eb" });
  await assert.rejects(client.join({ ...ANN, user: "Zoe\u0308" }), /again must be true/); // the same name
  for (const user of ["", null, 7, "a".repeat(201)]) await assert.rejects(client.join({ ...ANN, user }), /user must be/);
});

describe("attacks", { concurrency: true }, () => attacks.forEach(([name, attack]) => it(name, attack)));
