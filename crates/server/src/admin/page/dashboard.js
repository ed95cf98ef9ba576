// The dashboard: shows what /events says. Text from the server is shown as text only, never as markup.
"use strict";

const KEPT = 120; // seconds of history
const SILENT_MS = 10000; // an event comes each second
const TOKEN = "cattlegrid-token";
const SVG = "http://www.w3.org/2000/svg";

let state = null; // the last snapshot, with all patches
let previous = null; // figures of the second before
let series = {}; // name of a rate to its last values
let control = null; // of the stream that is open
let retry = 0; // the timer of the next try
let lostSince = null;
let paused = false;
let failures = 0;

const byId = (id) => document.getElementById(id);

// --- elements -------------------------------------------------------------------------------------------------------------

function make(name, attributes, ...children) {
  const one = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) one.setAttribute(key, value);
  one.append(...children);
  return one;
}

function draw(name, attributes) {
  const one = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) one.setAttribute(key, value);
  return one;
}

function setText(one, text) {
  if (one.textContent !== text) one.textContent = text;
}

function setAttribute(one, name, value) {
  if (one.getAttribute(name) !== value) one.setAttribute(name, value);
}

// Children of `parent` by name, in this order: those that are there stay, so that focus and open parts do.
function keyed(parent, given, create) {
  const names = given.map((name, at) => (given.indexOf(name) === at ? name : `${name} ${at}`));
  const there = new Map();
  for (const child of [...parent.children]) there.set(child.dataset.name, child);
  names.forEach((name, at) => {
    let child = there.get(name);
    if (!child) {
      child = create(name);
      child.dataset.name = name;
    }
    there.delete(name);
    if (parent.children[at] !== child) parent.insertBefore(child, parent.children[at] || null);
  });
  for (const child of there.values()) child.remove();
  return parent.children;
}

// --- numbers --------------------------------------------------------------------------------------------------------------

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const tenth = new Intl.NumberFormat("en-US", { maximumFractionDigits: 1 });

const count = (n) => whole.format(n);
const rate = (n) => (n < 10 ? tenth : whole).format(n);
const share = (n) => (n === null ? "–" : `${(Math.floor(n * 1000) / 10).toFixed(1)} %`);
const ms = (n) => (n < 1000 ? `${tenth.format(n)} ms` : `${(n / 1000).toFixed(n < 10000 ? 2 : 1)} s`);
const us = (n) => (n < 1000 ? `${count(n)} µs` : ms(n / 1000));

function bytes(n) {
  const units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (n >= 1024 && at < 4) {
    n /= 1024;
    at += 1;
  }
  return `${at === 0 ? count(n) : n.toFixed(n < 10 ? 2 : 1)} ${units[at]}`;
}

function span(seconds) {
  const [d, h, m, s] = [Math.floor(seconds / 86400), Math.floor(seconds / 3600) % 24, Math.floor(seconds / 60) % 60, Math.floor(seconds) % 60];
  if (d) return `${d} d ${h} h`;
  if (h) return `${h} h ${m} min`;
  return m ? `${m} min ${s} s` : `${s} s`;
}

const clock = (date) => date.toTimeString().slice(0, 8);
const ratio = (part, all) => (all > 0 ? part / all : null);

// --- figures: each has the name that `stats` has for it, and its exact value ---------------------------------------------

// A key as a person reads it, if all of it can be read.
function plain(key) {
  try {
    const text = decodeURIComponent(key);
    return /^[\x20-\x7e]*$/.test(text) ? text : key;
  } catch {
    return key;
  }
}

// A list of figures: [label, names of lines whose sum it is, format, what is shown where there is no such line].
function rows(parent, group, values, list) {
  const dl = parent.querySelector(":scope > dl.rows") || parent.appendChild(make("dl", { class: "rows" }));
  const shown = list.filter(([, names, , absent]) => absent || [names].flat().some((name) => values[name] !== undefined));
  keyed(dl, shown.map(([label]) => label), (label) => make("div", {}, make("dt", {}, label), make("dd", {})));
  shown.forEach(([, names, format, absent], at) => {
    const lines = [names].flat().filter((name) => values[name] !== undefined);
    if (!lines.length) return setText(dl.children[at].lastChild, absent);
    const value = lines.length === 1 ? values[lines[0]] : lines.reduce((sum, name) => sum + values[name], 0);
    figure(dl.children[at].lastChild, lines.map((name) => `${group} ${name}`).join("+"), value, format || count);
  });
}

function figure(one, name, value, format) {
  setAttribute(one, "data-stat", name);
  setAttribute(one, "data-value", String(value));
  setText(one, typeof value === "number" ? format(value) : String(value));
}

function all(parent, group, values, skip) {
  const names = Object.keys(values).filter((name) => values[name] !== 0 && typeof values[name] !== "object" && !skip.includes(name));
  rows(parent, group, values, names.map((name) => [name, name, (n) => (Number.isInteger(n) ? count(n) : String(n))]));
}

function more(parent, title, fill) {
  let details = parent.querySelector(":scope > details");
  if (!details) {
    details = parent.appendChild(make("details", {}, make("summary", {}, title), make("div", {})));
    details.addEventListener("toggle", () => details.open && fill(details.lastChild));
  }
  if (details.open) fill(details.lastChild);
}

// --- little charts --------------------------------------------------------------------------------------------------------

function spark(svg, label, values, format) {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const top = high > 0 ? high : 1;
  const x = (at) => 100 - (values.length - 1 - at) * (100 / (KEPT - 1));
  const y = (value) => 38 - (value / top) * 34;
  const points = values.map((value, at) => `${x(at).toFixed(2)},${y(value).toFixed(2)}`);
  if (!svg.firstChild) {
    for (const kind of ["area", "stroke"]) svg.append(draw(kind === "area" ? "polygon" : "polyline", { class: kind }));
    svg.append(draw("line", { class: "base", x1: 0, x2: 100, y1: 38, y2: 38 }));
  }
  svg.children[0].setAttribute("points", values.length ? `${x(0).toFixed(2)},38 ${points.join(" ")} 100,38` : "");
  svg.children[1].setAttribute("points", points.join(" "));
  setAttribute(svg, "aria-label", values.length ? `${label}, the last ${values.length} s: between ${format(low)} and ${format(high)}` : label);
}

const TILES = [
  ["hit ratio", "share", share, (s) => `since the start: ${share(ratio(s.stats.get_hits, answered(s)))}`],
  ["operations/s", "operations", rate, (s) => `gets: ${rate(last("gets"))}/s`],
  ["computations made/s", "made", rate, (s) => `since the start: ${count(made(s))}`],
  ["computations saved/s", "saved", rate, (s) => `since the start: ${count(total(s).computes_saved || 0)}`],
  ["held now", "held", count, (s) => `being computed: ${count(s.cattlegrid.leases)}`],
  ["stale served/s", "stale", rate, (s) => `since the start: ${count(total(s).stale_served || 0)}`],
  ["memory used", "memory", share, (s) => `${bytes(s.cattlegrid.memory_used)} of ${bytes(s.cattlegrid.memory_limit)}`],
  ["connections", "connections", count, (s) => `of ${count(s.stats.max_connections)}; evictions: ${rate(last("evictions"))}/s`],
];

const total = (s) => s.total || {};
const sum = (of, names) => names.reduce((all, name) => all + (of[name] || 0), 0);
// Not `cmd_get`: held gets are in it before they are answered.
const answered = (s) => s.stats.get_hits + s.stats.get_misses;
const made = (s) => sum(total(s), ["leases", "leases_stale", "leases_early"]);
const last = (name) => (series[name] && series[name].length ? series[name][series[name].length - 1] : 0);

function counters(s) {
  const operations = ["cmd_get", "cmd_set", "cmd_touch", "delete_hits", "delete_misses", "incr_hits", "incr_misses", "decr_hits", "decr_misses"];
  return {
    ms: s.time_ms, pid: s.stats.pid, gets: s.stats.cmd_get, hits: s.stats.get_hits, answered: answered(s), operations: sum(s.stats, operations), made: made(s),
    saved: total(s).computes_saved || 0, stale: total(s).stale_served || 0, evictions: s.stats.evictions,
  };
}

function note(s) {
  const now = counters(s);
  const add = (name, value) => {
    series[name] = [...(series[name] || []), value].slice(-KEPT);
  };
  add("held", s.cattlegrid.held);
  add("memory", ratio(s.cattlegrid.memory_used, s.cattlegrid.memory_limit) || 0);
  add("connections", s.stats.curr_connections);
  const seconds = previous ? (now.ms - previous.ms) / 1000 : 0;
  if (seconds > 0 && seconds < 10) {
    // After `stats reset` counters have begun at 0.
    const isReset = ["hits", "answered", "operations"].some((name) => now[name] < previous[name]);
    const since = (name) => (isReset || now[name] < previous[name] ? now[name] : now[name] - previous[name]);
    for (const name of ["gets", "operations", "made", "saved", "stale", "evictions"]) add(name, since(name) / seconds);
    add("share", since("answered") ? Math.min(1, since("hits") / since("answered")) : last("share"));
  } else {
    add("share", ratio(now.hits, now.answered) || 0);
  }
  previous = now;
}

function tiles() {
  const boxes = keyed(byId("tiles"), TILES.map(([title]) => title), (title) => {
    const svg = draw("svg", { class: "spark", viewBox: "0 0 100 40", preserveAspectRatio: "none", role: "img", "aria-label": title });
    return make("div", { class: "tile" }, make("h3", {}, title), make("p", { class: "big" }), svg, make("p", { class: "small" }));
  });
  TILES.forEach(([title, name, format, small], at) => {
    const [, big, svg, line] = boxes[at].children;
    const isRatio = name === "share" && !answered(state);
    setText(big, isRatio ? "–" : format(last(name)));
    spark(svg, title, series[name] || [], format);
    setText(line, small(state));
  });
  const [connections, held] = [boxes[7].children[1], boxes[4].children[1]];
  figure(connections, "stats curr_connections", state.stats.curr_connections, count);
  figure(held, "stats cattlegrid held", state.cattlegrid.held, count);
}

// --- sections -------------------------------------------------------------------------------------------------------------

const PROMOTED = ["promoted_close", "promoted_deadline", "promoted_invalidated", "promoted_gave_up", "promoted_slot"];
const LEASES = ["leases", "leases_stale", "leases_early"];
const RULE = [
  ["gets", "gets"], ["answered at once", "hits"], ["computations made", LEASES], ["computations saved", "computes_saved"],
  ["held", "held"], ["holds without a value", "hold_expired"], ["stale served", "stale_served"], ["promotions", PROMOTED],
  ["fills dropped", "fills_dropped"], ["computing now", "computing"], ["computing takes, p50", "p50_ms", ms], ["computing takes, p99", "p99_ms", ms],
];
const HERDS = [
  ["held now", "held"], ["computed now", "leases"],
];
const HERDS_TOTAL = [
  ["computations made", LEASES], ["of them for missing values", "leases"], ["of them for stale values", "leases_stale"], ["of them early", "leases_early"],
  ["computations saved", "computes_saved"], ["held gets", "held"], ["held gets that got the value", "held_filled"], ["holds without a value", "hold_expired"],
  ["stale served", "stale_served"], ["promotions", PROMOTED], ["holder's connection closed", "promoted_close"], ["holder's time was up", "promoted_deadline"],
  ["key was invalidated", "promoted_invalidated"], ["holder gave up", "promoted_gave_up"],
];
const DROPS_TOTAL = [
  ["fills older than an invalidation", "fills_dropped_old"], ["fills that may be older", "fills_dropped_ambiguous"], ["fills without a record", "fills_dropped_unrecorded"],
  ["loads that came too late", "loads_late"], ["leases without a fill", "unset"],
];
const DROPS = [
  ["evictions", "evictions"], ["evicted, never read", "evicted_unfetched"], ["values too large", "store_too_large"], ["no memory", "store_no_memory"],
  ["expired, never read", "expired_unfetched"], ["gets of expired values", "get_expired"], ["gets of flushed values", "get_flushed"],
];
const TAGS = [
  ["bumps", "hard_bumps"], ["soft bumps", "soft_bumps"], ["false stale", "false_stale", share, "not measured yet"], ["gradual purges running", "gradual"],
  ["own tag bumped by a cascade", "self_bumped"], ["left out, since no item has the tag", "left_out"], ["memory", "memory_bytes", bytes],
];
const LOADER = [
  ["workers", "workers"], ["most workers", "max"], ["busy", "busy"], ["queue", "queued"], ["jobs", "jobs"], ["values", "values"], ["errors", "errors"],
  ["timeouts", "timeouts"], ["lost", "lost"], ["refused", "refused"], ["run time, p50", "run_p50_us", us], ["run time, p99", "run_p99_us", us],
  ["wait for a worker, p99", "wait_p99_us", us],
];
const MEMORY = [
  ["items in segments", "segment_bytes"], ["index", "index_bytes"], ["large values", "huge_bytes"], ["replies not taken", "pinned_bytes"],
  ["recently evicted keys", "ghost_bytes"],
];

function say(parent, list) {
  const names = list.map((one) => one.about);
  const boxes = keyed(parent, names, () => {
    const copy = make("button", { type: "button" }, "Copy");
    const code = make("code", {});
    copy.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(code.textContent);
        setText(copy, "Copied");
      } catch {
        getSelection().selectAllChildren(code);
        setText(copy, "Selected");
      }
      setTimeout(() => setText(copy, "Copy"), 2000);
    });
    return make("div", { class: "say" }, make("p", {}), make("pre", {}, code, copy));
  });
  list.forEach((one, at) => {
    const [what, pre] = boxes[at].children;
    setText(what, one.what);
    pre.hidden = !one.toml;
    setText(pre.firstChild, one.toml || "");
    setAttribute(pre.lastChild, "aria-label", `Copy ${one.toml || ""}`);
  });
}

function advice() {
  const names = Object.keys(state.advice);
  const parent = byId("advice-list");
  const left = state.advised - names.filter((name) => name !== "server").length;
  const shown = names.length ? (left > 0 ? [...names, "more"] : names) : ["none"];
  const boxes = keyed(parent, shown, () => make("div", {}, make("h3", {}), make("div", {})));
  shown.forEach((name, at) => {
    const [head, body] = boxes[at].children;
    const rule = state.rules[name];
    const none = state.rules_all ? "Nothing: no rule has figures that call for a change." : "There are no rules. `cattlegrid advise` watches the traffic, and prints those that fit it.";
    const others = name === "server" ? "The server" : name === "more" ? `${count(left)} more rules: /advice has all.` : none;
    setText(head, rule ? `Rule ${name}, ${rule.match}` : others);
    say(body, state.advice[name] || []);
  });
}

function cards(parent, names, fill, none) {
  const boxes = keyed(byId(parent), names, () => make("article", { class: "card" }, make("h3", {}), make("div", {})));
  names.forEach((name, at) => fill(boxes[at], name));
  byId(parent).closest("section").hidden = none && names.length === 0;
}

function rules() {
  const names = Object.keys(state.rules);
  const left = state.rules_all - names.length;
  setText(byId("rules-note"), left > 0 ? `${names.length} of them: those with advice first, then those that are used most; ${count(left)} more are at /rules.` : state.rules_all ? "" : "No rule file is loaded.");
  // After a reload a number may be another rule's.
  const cardNames = names.map((name) => `${name} ${state.rules[name].match}`);
  cards("rule-cards", cardNames, (card, cardName) => {
    const name = cardName.split(" ", 1)[0];
    const rule = state.rules[name];
    setText(card.firstChild, `${name}. ${rule.prefix || ""}${rule.match}`);
    setAttribute(card, "data-rule", name);
    const body = card.lastChild;
    if (!body.firstChild) body.append(make("p", { class: "note" }), make("div", {}), make("div", {}));
    const [line, list, figures] = body.children;
    // Hits and gets of a rule may be counted in samples.
    const found = Math.min(1, ratio(rule.hits + rule.held_filled + rule.held_old, rule.gets));
    setText(line, rule.gets ? `${share(found)} of its gets got a value` : rule.matched ? "no gets yet" : "no key has matched it yet");
    say(list, state.advice[name] || []);
    rows(figures, `stats rules ${name}:`, rule, RULE.filter(([, names]) => [names].flat().some((one) => rule[one])));
    more(body, "All its figures", (into) => all(into, `stats rules ${name}:`, rule, ["rule", "match", "advice"]));
  });
}

function memory() {
  const own = state.cattlegrid;
  const parent = byId("memory-body");
  if (!parent.firstChild) {
    parent.append(draw("svg", { class: "bar", viewBox: "0 0 100 10", preserveAspectRatio: "none", role: "img", "aria-label": "memory" }), make("div", {}), make("div", {}));
  }
  const [svg, parts, others] = parent.children;
  const uses = MEMORY.filter(([, name]) => own[name] !== undefined);
  if (svg.children.length !== uses.length) svg.replaceChildren(...uses.map((_, at) => draw("rect", { y: 0, height: 10, class: `c${at}` })));
  let x = 0;
  uses.forEach(([, name], at) => {
    const width = (own[name] / own.memory_limit) * 100;
    svg.children[at].setAttribute("x", x.toFixed(3));
    svg.children[at].setAttribute("width", Math.max(0, width).toFixed(3));
    x += width;
  });
  setAttribute(svg, "aria-label", `${share(ratio(own.memory_used, own.memory_limit))} of the memory limit is used: ${uses.map(([label, name]) => `${label} ${bytes(own[name])}`).join(", ")}`);
  rows(parts, "stats cattlegrid", own, uses.map(([label, name]) => [label, name, bytes]));
  [...parts.firstChild.children].forEach((row, at) => {
    if (!row.firstChild.firstElementChild) row.firstChild.prepend(make("span", { class: `swatch c${at}`, "aria-hidden": "true" }));
  });
  rows(others, "stats cattlegrid", own, [
    ["used", "memory_used", bytes], ["limit", "memory_limit", bytes], ["unusable until collected", "segment_dead_bytes", bytes],
    ["for rules, of -m", "memory_for_rules", bytes], ["partial input", "partial_bytes", bytes], ["unsent replies", "unsent_bytes", bytes],
  ]);
}

function herds() {
  const part = (id, at) => {
    const parent = byId(id);
    while (parent.children.length <= at) parent.append(make("div", {}));
    return parent.children[at];
  };
  rows(part("herds-body", 0), "stats cattlegrid", state.cattlegrid, HERDS);
  rows(part("herds-body", 1), "stats rules total:", total(state), HERDS_TOTAL);
  rows(part("drops-body", 0), "stats rules total:", total(state), DROPS_TOTAL);
  rows(part("drops-body", 1), "stats", state.stats, DROPS);
  rows(part("tags-body", 0), "stats tags", state.tags, TAGS);
}

function list(parent, heads, lines, none) {
  const into = byId(parent);
  let table = into.querySelector("table");
  if (!lines.length) {
    if (!into.firstChild || table) into.replaceChildren(make("p", { class: "note" }, none));
    return;
  }
  if (!table) {
    const head = make("tr", {}, ...heads.map((text, at) => make("th", { scope: "col", class: at ? "num" : "" }, text)));
    table = make("table", { "aria-labelledby": into.closest("section").getAttribute("aria-labelledby") }, make("thead", {}, head), make("tbody", {}));
    into.replaceChildren(table);
  }
  const boxes = keyed(table.tBodies[0], lines.map((_, at) => String(at)), () => make("tr", {}, ...heads.map((_, at) => make("td", { class: at ? "num" : "key" }))));
  lines.forEach((line, at) => line.forEach((text, cell) => setText(boxes[at].children[cell], text)));
}

function lists() {
  const hot = (all, name) => all.map((one) => [plain(one[name]), count(one.count), count(one.misses), count(one.herd_misses)]);
  list("keys-body", ["key", "requests", "misses", "in herds"], hot(state.hot.by_requests, "key"), "None yet.");
  list("shapes-body", ["shape", "requests", "misses", "in herds"], hot(state.hot.shapes, "shape"), "None yet.");
  const slow = state.slow.map((one) => [`${one.kind} ${one.shape}`, ms(one.ms), count(one.times), `${span(Math.max(0, state.time_ms - one.at_ms) / 1000)} ago`]);
  list("slow-body", ["what", "longest", "times", "last"], slow, "None above the times of --slow-log.");
}

function others() {
  cards("loader-cards", Object.keys(state.loaders), (card, name) => {
    setText(card.firstChild, name);
    rows(card.lastChild, `stats loaders ${name}:`, state.loaders[name], LOADER);
  }, true);
  cards("object-cards", Object.keys(state.types).filter((name) => state.types[name].items || Object.keys(state.methods).some((one) => one.startsWith(`${name}:`))), (card, name) => {
    setText(card.firstChild, name);
    if (!card.lastChild.firstChild) card.lastChild.append(make("div", {}), make("div", {}));
    const [own, calls] = card.lastChild.children;
    rows(own, `stats objects ${name}:`, state.types[name], [["objects", "items"], ["bytes", "bytes", bytes]]);
    const methods = Object.keys(state.methods).filter((one) => one.startsWith(`${name}:`));
    const values = {};
    for (const one of methods) for (const line of ["calls", "errors", "time_avg_us"]) values[`${one.slice(name.length + 1)}:${line}`] = state.methods[one][line];
    rows(calls, `stats objects ${name}:`, values, Object.keys(values).map((line) => [line.replace(":", ": ").replace("time_avg_us", "mean time"), line, line.endsWith("_us") ? us : count]));
  }, true);
  cards("share-cards", Object.keys(state.shares), (card, name) => {
    const one = state.shares[name];
    setText(card.firstChild, one.prefix === undefined ? "all other keys" : one.prefix);
    rows(card.lastChild, `stats shares ${name}:`, one, [["items", "items"], ["bytes", "bytes", bytes], ["at least", "at_least_bytes", bytes], ["kept of that", "kept", share], ["at most", "at_most_bytes", bytes], ["evictions", "evictions"]]);
  }, true);
  const nodes = Object.fromEntries(state.nodes.map((one) => [one.name, one]));
  cards("node-cards", Object.keys(nodes), (card, name) => {
    const one = nodes[name];
    setText(card.firstChild, one.self ? `${name}, this node` : name);
    const values = Object.fromEntries(Object.entries(one).filter(([, value]) => value !== null && value !== ""));
    rows(card.lastChild, `get @nodes ${name}`, values, [["state", "state"], ["address", "address"], ["lag", "lag_ms", ms], ["version", "version"]]);
  });
  cards("log-cards", Object.keys(state.follow), (card, name) => {
    setText(card.firstChild, `log ${name}`);
    rows(card.lastChild, `stats follow ${name}:`, state.follow[name], [["state", "state"], ["lag", "lag_ms", ms], ["behind for", "behind_s", span], ["bumps", "bumps"], ["flushes", "flushes"], ["connections lost", "losses"], ["why", "lost"], ["lacks", "missing"]]);
  });
  byId("fleet").hidden = !state.nodes.length && !Object.keys(state.follow).length;
  const groups = [["stats", state.stats, "stats"], ["stats cattlegrid", state.cattlegrid, "stats cattlegrid"], ["stats rules, total", total(state), "stats rules total:"], ["stats tags", state.tags, "stats tags"], ["stats objects", state.objects, "stats objects"]];
  const boxes = keyed(byId("all-body"), groups.map(([title]) => title), () => make("div", {}));
  groups.forEach(([title, values, group], at) => more(boxes[at], title, (into) => all(into, group, values, [])));
  // Links lead to what is there only.
  for (const link of document.querySelectorAll("nav a")) link.hidden = byId(link.hash.slice(1)).hidden;
}

function show() {
  byId("figures").hidden = false;
  setText(byId("server"), `${state.cattlegrid.version} · process ${state.stats.pid} · up ${span(state.stats.uptime)}`);
  for (const part of [tiles, advice, rules, memory, herds, lists, others]) part();
  byId("figures").dataset.time = state.time_ms;
}

// --- the stream -----------------------------------------------------------------------------------------------------------

// RFC 7396.
function merge(into, patch) {
  if (patch === null || typeof patch !== "object" || Array.isArray(patch)) return patch;
  // Without a prototype: a name may be any text.
  const merged = into !== null && typeof into === "object" && !Array.isArray(into) ? into : Object.create(null);
  for (const [name, value] of Object.entries(patch)) {
    if (value === null) delete merged[name];
    else merged[name] = merge(merged[name], value);
  }
  return merged;
}

function heard(kind, data) {
  if (kind === "end") return;
  const before = state;
  state = merge(kind === "full" ? null : state, JSON.parse(data));
  if (kind === "full") {
    previous = null;
    if (before && before.stats.pid !== state.stats.pid) series = {};
  }
  failures = 0;
  note(state);
  linked("live", "live");
  show();
}

function linked(to, text) {
  const isStale = to === "lost";
  if (isStale && !lostSince) lostSince = new Date();
  if (to === "live") lostSince = null;
  setAttribute(byId("link"), "data-state", to);
  setText(byId("link-text"), text);
  document.body.classList.toggle("stale", isStale && state !== null);
  const figures = state ? " The figures are from before." : "";
  setText(byId("banner"), isStale ? `The server does not answer since ${clock(lostSince)}: ${text}.${figures} Trying again.` : "");
}

async function follow() {
  clearTimeout(retry);
  if (control) control.abort();
  if (paused) goOn();
  const own = new AbortController();
  control = own;
  const token = sessionStorage.getItem(TOKEN);
  byId("forget").hidden = !token;
  let timer = setTimeout(() => own.abort(), SILENT_MS);
  let why = "the connection was lost";
  try {
    const reply = await fetch("/events", { headers: token ? { Authorization: `Bearer ${token}` } : {}, cache: "no-store", signal: own.signal });
    if (reply.status === 401) return login(token);
    if (!reply.ok) throw new Error((await reply.text()).trim());
    byId("login").hidden = true;
    const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) break;
      clearTimeout(timer);
      timer = setTimeout(() => own.abort(), SILENT_MS);
      text += value;
      for (let end = text.indexOf("\n\n"); end >= 0; end = text.indexOf("\n\n")) {
        const [kind, data] = text.slice(0, end).split("\n").map((line) => line.slice(line.indexOf(": ") + 2));
        text = text.slice(end + 2);
        if (kind === "end") why = data;
        heard(kind, data);
      }
      if (document.hidden) break;
    }
  } catch (error) {
    if (!(error instanceof TypeError) && error.name !== "AbortError") why = error.message || why;
  } finally {
    clearTimeout(timer);
  }
  if (control !== own) return;
  own.abort();
  control = null;
  if (document.hidden || paused) return;
  // The server has read its files again, and goes on.
  if (why === "reload") return follow();
  failures += 1;
  linked("lost", why);
  retry = setTimeout(follow, Math.min(1000 * failures, 5000));
}

function goOn() {
  paused = false;
  setAttribute(byId("pause"), "aria-pressed", "false");
  setText(byId("pause"), "Pause");
}

function stop(text) {
  clearTimeout(retry);
  const open = control;
  control = null;
  if (open) open.abort();
  lostSince = null;
  linked("paused", text);
}

function login(token) {
  control = null;
  sessionStorage.removeItem(TOKEN);
  byId("forget").hidden = true;
  byId("figures").hidden = true;
  byId("login").hidden = false;
  linked("paused", "a token is needed");
  setText(byId("refused"), token ? "The server refuses this token." : "");
  byId("token").focus();
}

byId("login").addEventListener("submit", (event) => {
  event.preventDefault();
  const token = byId("token").value.trim();
  byId("token").value = "";
  // As in --admin-token; others cannot stand in a header.
  if (!/^[!-~]+$/.test(token)) {
    setText(byId("refused"), "A token has printable characters of ASCII only, and no blanks.");
    byId("token").focus();
    return;
  }
  sessionStorage.setItem(TOKEN, token);
  follow();
});
byId("forget").addEventListener("click", () => {
  stop("a token is needed");
  state = null;
  login(null);
});
byId("pause").addEventListener("click", () => {
  if (paused) return follow();
  paused = true;
  setAttribute(byId("pause"), "aria-pressed", "true");
  setText(byId("pause"), "Go on");
  stop(`paused at ${clock(new Date())}`);
});
document.addEventListener("visibilitychange", () => {
  if (paused || !byId("login").hidden) return;
  if (document.hidden) stop("not shown");
  else follow();
});
follow();
