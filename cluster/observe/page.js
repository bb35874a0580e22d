// The live page of a node: everything is asked of one node, and of another one when that is silent.
// Nothing that comes from the cluster is ever HTML: all of it goes through textContent.
"use strict";

const SILENT_MS = 4000;  // events come every second
const RETRY_MS = 1000;
const TABLES_MS = 5000;  // as the node surveys its topics
const ROWS = 50;
const EVENTS_MAX = 500;  // as the node keeps
const LINES_MAX = 200;
const POINTS_MAX = 720;
const POINT_S = 5;
const AVOID_MS = 30000;  // a page that has not answered is not gone to by itself for so long
const HOME_MS = 5000;  // between two looks whether the node that this page came from is back

const $ = (id) => document.getElementById(id);
const own = location.origin;
let base = own;  // of the node that is asked
let pages = {};  // the nodes' pages, by name, as any of them has said
let names = {};  // and by address
let token = sessionStorage.getItem("flotilla-token") || "";
let heardAt = performance.now();
let lostAt = 0;
let last = null;  // the newest status
let points = [];
let events = [];
const failedAt = {};  // by page
let generation = 0;  // of the connection: what an older one still says is not heard

function make(tag, text, attributes = {}) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

function svg(tag, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

// --- numbers ---

function count(value) {
  if (value === null || value === undefined) return "–";
  if (Math.abs(value) >= 100000) return new Intl.NumberFormat("en", {notation: "compact", maximumFractionDigits: 1}).format(value);
  return new Intl.NumberFormat("en", {maximumFractionDigits: value < 10 ? 1 : 0}).format(value);
}

function bytes(value) {
  if (value === null || value === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) { value /= 1024; unit++; }
  return `${value >= 10 || unit === 0 ? Math.round(value) : value.toFixed(1)} ${units[unit]}`;
}

function ms(value) {
  if (value === null || value === undefined) return "–";
  return value >= 1000 ? `${(value / 1000).toFixed(1)} s` : `${value >= 10 ? Math.round(value) : value.toFixed(1)} ms`;
}

const clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString();

// --- asking ---

function headers() {
  return token ? {Authorization: `Bearer ${token}`} : {};
}

async function ask(path, signal) {
  const response = await fetch(base + path, {headers: headers(), signal, cache: "no-store", credentials: "omit"});
  if (response.status === 401) { askForToken(); throw new Error("the token is needed"); }
  if (!response.ok) throw new Error(`${response.status} ${await response.text()}`);
  return response;
}

function askForToken() {
  $("ask").hidden = false;
  state("This node asks for its token.", true);
}

$("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  token = $("token").value.trim();
  sessionStorage.setItem("flotilla-token", token);
  $("ask").hidden = true;
  connect();
});

setInterval(async () => {
  if (base === own) return;
  try {
    if (!(await fetch(`${own}/healthz`, {cache: "no-store"})).ok) return;
  } catch {
    return;
  }
  base = own;  // the node that this page came from is back
  connect();
}, HOME_MS);

async function connect() {
  const mine = ++generation;
  const stop = new AbortController();
  const watch = setInterval(() => {
    if (mine !== generation) { stop.abort(); clearInterval(watch); }
    else if (performance.now() - heardAt > SILENT_MS) stop.abort();
  }, 500);
  try {
    heardAt = performance.now();
    const past = await (await ask("/history.json", stop.signal)).json();
    if (mine !== generation) return;
    points = past.points;
    events = past.events.slice(-EVENTS_MAX);
    drawEvents();
    const stream = (await ask("/events", stop.signal)).body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const {value, done} = await stream.read();
      if (done || mine !== generation) break;
      rest += value;
      const parts = rest.split("\n\n");
      rest = parts.pop();
      for (const part of parts) hear(JSON.parse(part.slice("data: ".length)));
    }
  } catch (error) {
    if (mine !== generation || !$("ask").hidden) return;
  } finally {
    clearInterval(watch);
    stop.abort();
  }
  if (mine === generation) lost();
}

function lost() {
  if (!lostAt) lostAt = Date.now();
  failedAt[base] = performance.now();
  const gone = names[base] || base.replace(/^https?:\/\//, "");
  const others = Object.values(pages).filter((page) => page !== base);
  state(`${gone} does not answer since ${new Date(lostAt).toLocaleTimeString()}. ` +
    (others.length ? "Asking another node …" : "No other node's page is known: what stands below is the last that was heard."), true);
  drawMap(gone);
  const known = [...new Set([base, own, ...Object.values(pages)])];
  base = known[(known.indexOf(base) + 1) % known.length];
  setTimeout(connect, RETRY_MS);
}

function hear(status) {
  heardAt = performance.now();
  const before = lostAt;
  lostAt = 0;
  last = status;
  const node = status.status.node;
  for (const [name, page] of Object.entries(status.status.pages || {})) pages[name] = page;
  if (base === own) pages[node] = own; else pages[node] = base;
  names = Object.fromEntries(Object.entries(pages).map(([name, page]) => [page, name]));
  const leads = pages[status.status.leader];
  if (base !== own && leads && leads !== base && !(performance.now() - failedAt[leads] < AVOID_MS)) {
    base = leads;  // who has lost its own node sees most at the leader
    connect();
    return;
  }
  for (const event of status.events) events.push(event);
  events = events.slice(-EVENTS_MAX);
  if (status.events.length) { drawEvents(); drawReigns(); }
  if (status.now && (!points.length || status.now.wall_s - points[points.length - 1].wall_s >= POINT_S)) {
    points.push(status.now);
    points = points.slice(-POINTS_MAX);
    drawCharts();
  }
  if (before || !$("charts").childElementCount) { drawCharts(); tables(); }
  say(status, node);
  drawMap("");
  drawNow(status);
}

function say(status, node) {
  const leader = status.status.leader;
  $("cluster").textContent = status.cluster;
  $("from").textContent = `as ${node} sees it`;
  $("hour-from").textContent = `as ${node} has measured it`;
  document.title = `${status.cluster}: ${leader ? leader + " leads" : "no leader"} – Flotilla`;
  const moved = base === own ? "" : ` This is ${node}'s view: the node that this page came from does not answer.`;
  if (!leader) state(`No leader: nothing is published or read now.${moved}`, true);
  else if (!status.ready) state(`${node} is not ready: ${status.unready}.${moved}`, true);
  else state(`${leader} leads in term ${status.status.term}.${moved}`, Boolean(moved));
}

function state(text, warn) {
  if ($("state").textContent !== text) $("state").textContent = text;
  $("state").className = warn ? "warn" : "";
}

// --- nodes ---

function drawMap(gone) {
  if (!last) return;
  const status = last.status;
  const rows = [[status.node, {mine: true, connected: true}], ...Object.entries(status.members || {})];
  rows.sort((a, b) => (a[0] < b[0] ? -1 : 1));
  $("map").replaceChildren(...rows.map(([name, member]) => {
    const leads = status.leader === name;
    const away = !member.connected || name === gone;
    const box = make("div", undefined, {class: `node${leads && !away ? " leader" : ""}${away ? " away" : ""}`});
    box.append(make("b", name));
    const role = away ? "✕ away" : leads ? "★ leader" : member.mine ? `● ${status.role}` : "● follower";
    box.append(make("p", role, {class: "role"}));
    const lines = [];
    if (member.mine) lines.push(`term ${status.term ?? "–"}, index ${count(status.applied_index)}`);
    else if (away) lines.push(member.silent_ms ? `silent for ${ms(member.silent_ms)}` : "no link");
    else lines.push(`index ${count(member.applied_index)}`);
    if (member.lag !== undefined && !away) lines.push(member.lag ? `${count(member.lag)} ${member.lag === 1 ? "entry" : "entries"} behind` : "up to date");
    if (member.version || member.mine) lines.push(`version ${member.version || status.versions.flotilla}`);
    for (const line of lines) box.append(make("p", line));
    const damaged = member.mine && status.scrub ? status.scrub.damaged : 0;
    if (damaged) box.append(make("p", `⚠ disk damaged in ${count(damaged)} ${damaged === 1 ? "place" : "places"}`));
    const page = pages[name];
    if (page && page !== own) {
      const link = make("p");
      link.append(make("a", "its page", {href: page}));
      box.append(link);
    }
    return box;
  }));
}

// --- now ---

function drawNow(status) {
  const now = status.now || {put_ms: [], fsync_ms: []};
  const store = status.status.store || {};
  const waiting = Object.values(status.waiting).reduce((sum, each) => sum + each, 0);
  pairs($("now"), [
    ["published / s", count(now.stored_rate)],
    ["read / s", count(now.delivered_rate)],
    ["PUT median", ms(now.put_ms[0])],
    ["PUT 99 %", ms(now.put_ms[1])],
    ["fsync 99 %", ms(now.fsync_ms[1])],
    ["refused / s", count(now.refused_rate)],
    ["topics", count(store.topics)],
    ["subscriptions", count(store.subscriptions)],
    ["groups", count(store.groups)],
    ["backlog", bytes(store.backlog_bytes)],
    ["clients", count(store.clients)],
    ["connections here", count(status.connections)],
    ["requests that wait", count(waiting)],
    ["disk free", bytes(status.disk.free_bytes)],
    ["without a leader", ms(status.leaderless_s * 1000)],
  ]);
  const refused = Object.entries(status.refused).sort((a, b) => b[1] - a[1]);
  const by = (status.refused_by || []).map(([who, why, times]) => [`${who}: ${why}`, count(times)]);
  if (refused.length || by.length) pairs($("refused"), [...refused.map(([code, times]) => [code, count(times)]), ...by]);
  else $("refused").replaceChildren(make("dt", "nothing"));
}

function pairs(list, rows) {
  list.replaceChildren(...rows.map(([name, value]) => {
    const pair = make("div");
    pair.append(make("dt", name), make("dd", value));
    return pair;
  }));
}

// --- the hour ---

const CHARTS = [
  ["Publications a second", ["stored", (p) => p.stored_rate], ["read", (p) => p.delivered_rate], count],
  ["PUT at the leader", ["median", (p) => p.put_ms[0]], ["99 %", (p) => p.put_ms[1]], ms],
  ["fsync", ["median", (p) => p.fsync_ms[0]], ["99 %", (p) => p.fsync_ms[1]], ms],
  ["Requests a second", ["all", (p) => p.requests_rate], ["refused", (p) => p.refused_rate], count],
];
const HEIGHT = 120, LEFT = 48, BOTTOM = 16, TOP = 6, GAP = 16, COLUMN_MIN = 264;

function chartWidth() {
  const all = $("charts").clientWidth;
  const columns = Math.max(1, Math.min(CHARTS.length, Math.floor((all + GAP) / (COLUMN_MIN + GAP))));
  return Math.max(200, (all - GAP * (columns - 1)) / columns);
}

addEventListener("resize", () => drawCharts());

function drawCharts() {
  drawReigns();
  $("charts").replaceChildren(...CHARTS.map(([title, first, second, unit]) => chart(title, first, second, unit)));
}

function chart(title, first, second, unit) {
  const figure = make("figure");
  const WIDTH = chartWidth();
  const newest = points[points.length - 1];
  const caption = make("figcaption", `${title}: `);
  caption.append(make("b", `${first[0]} ${newest ? unit(first[1](newest)) : "–"}`), ` (solid), `,
    make("b", `${second[0]} ${newest ? unit(second[1](newest)) : "–"}`), ` (dashed)`);
  figure.append(caption);
  const drawn = svg("svg", {viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": title});
  figure.append(drawn);
  if (!newest) { drawn.append(svg("text", {x: LEFT, y: HEIGHT / 2}, "nothing measured yet")); return figure; }
  const end = newest.wall_s;
  const begin = Math.min(points[0].wall_s, end - 60);
  const values = points.flatMap((p) => [first[1](p), second[1](p)]).filter((value) => value !== null);
  const top = Math.max(...values, 0) || 1;
  const x = (wall) => LEFT + (WIDTH - LEFT) * (wall - begin) / (end - begin);
  const y = (value) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / top);
  for (const share of [0, 0.5, 1]) {
    drawn.append(svg("line", {class: "grid", x1: LEFT, x2: WIDTH, y1: y(share * top), y2: y(share * top)}));
    drawn.append(svg("text", {x: 0, y: y(share * top) + 4}, unit(share * top)));
  }
  drawn.append(svg("text", {x: LEFT, y: HEIGHT - 3}, clock(begin)));
  drawn.append(svg("text", {x: WIDTH, y: HEIGHT - 3, "text-anchor": "end"}, clock(end)));
  points.forEach((p, number) => {  // blackouts
    if (!p.has_leader) {
      const from = number ? points[number - 1].wall_s : p.wall_s - POINT_S;
      drawn.append(svg("rect", {class: "gap", x: x(from), y: TOP, width: Math.max(2, x(p.wall_s) - x(from)), height: HEIGHT - TOP - BOTTOM}));
    }
  });
  for (const [name, [, value]] of [["first", first], ["second", second]]) {
    let path = "", pen = false;
    for (const p of points) {
      const found = value(p);
      if (found === null || found === undefined) { pen = false; continue; }
      path += `${pen ? "L" : "M"}${x(p.wall_s).toFixed(1)} ${y(found).toFixed(1)}${pen ? "" : "h.1"}`;
      pen = true;
    }
    drawn.append(svg("path", {class: name, d: path, "stroke-linejoin": "round"}));
  }
  return figure;
}

// Who led when, from what the node's log was told. A leader that is gone is named until there is
// another one: its link's end is the blackout's beginning.
function reigns() {
  const found = [];
  let leader = null;
  let term = null;
  let lost = {};
  const turn = (at, to, of) => {
    if (to === leader && of === term) return;
    if (found.length) found[found.length - 1].to = at;
    found.push({from: at, to: null, leader: to, term: of});
    leader = to;
    term = of;
  };
  for (const event of events) {
    if (event.event === "role") {
      const named = event.leader || "";
      turn(event.at, named, named ? event.term : null);
    } else if (event.event === "peer_disconnected" && event.name === leader) {
      lost = {name: leader, term};
      turn(event.at, "", null);
    } else if (event.event === "peer_connected" && leader === "" && event.name === lost.name) {
      turn(event.at, lost.name, lost.term);  // only the link was gone
    }
  }
  return found;
}

function drawReigns() {
  const end = last ? last.wall_s : Date.now() / 1000;
  const all = reigns();
  const begin = Math.max(end - POINTS_MAX * POINT_S, Math.min(all.length ? all[0].from : end, end - 60));
  const shown = all.filter((each) => (each.to ?? end) > begin);
  const width = $("reigns").clientWidth || 600;
  const drawn = svg("svg", {class: "strip", viewBox: `0 0 ${width} 44`, role: "img", "aria-label": "Who led when"});
  const x = (at) => Math.max(0, Math.min(width, width * (at - begin) / (end - begin)));
  const blackouts = shown.filter((each) => !each.leader);
  shown.filter((each) => each.leader).forEach((each, number) => {
    const from = x(each.from), to = x(each.to ?? end);
    const rect = svg("rect", {class: `reign${number % 2 ? " odd" : ""}`, x: from, y: 4, width: Math.max(1, to - from), height: 22});
    rect.append(svg("title", {}, `${each.leader} led term ${each.term} from ${clock(each.from)}`));
    drawn.append(rect);
    if (to - from > 90) drawn.append(svg("text", {class: "leader", x: from + 6, y: 19}, `${each.leader}, term ${each.term}`));
  });
  for (const each of blackouts) {
    const from = x(each.from);
    const rect = svg("rect", {class: "blackout", x: from, y: 0, width: Math.max(3, x(each.to ?? end) - from), height: 30});
    rect.append(svg("title", {}, `no leader from ${clock(each.from)} for ${ms(((each.to ?? end) - each.from) * 1000)}`));
    drawn.append(rect);
  }
  drawn.append(svg("text", {x: 0, y: 42}, clock(begin)), svg("text", {x: width, y: 42, "text-anchor": "end"}, clock(end)));
  const longest = Math.max(0, ...blackouts.map((each) => (each.to ?? end) - each.from));
  const caption = make("figcaption", "Who led: ");
  const leaders = shown.filter((each) => each.leader).length;
  caption.append(make("b", shown.length ? `${leaders} ${leaders === 1 ? "term" : "terms"}` : "nothing seen yet"));
  if (blackouts.length) caption.append(", without a leader ", make("b", `${blackouts.length} ${blackouts.length === 1 ? "time" : "times"}, ${ms(longest * 1000)} at most`), " (high bars)");
  $("reigns").replaceChildren(caption, drawn);
}

// --- topics and subscriptions ---

function table(id, path, columns, order, open) {
  const place = {sort: order, down: true, first: 0, found: 0, asked: 0};
  const search = $(`${id}-search`);
  async function refresh() {
    const asked = ++place.asked;
    const query = new URLSearchParams({search: search.value, sort: place.sort, down: place.down ? 1 : 0, first: place.first, count: ROWS});
    let answer;
    try {
      answer = await (await ask(`${path}?${query}`)).json();
    } catch {
      return;  // the events say who is silent
    }
    if (asked !== place.asked) return;
    place.found = answer.found;
    if (place.first && place.first >= answer.found) { place.first = 0; refresh(); return; }
    draw(answer);
  }
  function draw(answer) {
    const head = make("tr");
    for (const [key, text] of columns) {
      const cell = make("th", undefined, {class: columns[0][0] === key || key === "client_id" ? "name" : "", scope: "col"});
      if (place.sort === key) cell.setAttribute("aria-sort", place.down ? "descending" : "ascending");
      const button = make("button", text + (place.sort === key ? (place.down ? " ▼" : " ▲") : ""), {type: "button"});
      button.addEventListener("click", () => {
        place.down = place.sort === key ? !place.down : !["topic", "client_id"].includes(key);
        place.sort = key;
        place.first = 0;
        refresh();
      });
      cell.append(button);
      head.append(cell);
    }
    const top = make("thead");
    top.append(head);
    const body = make("tbody");
    for (const row of answer.rows) {
      const line = make("tr");
      for (const [key, , unit] of columns) {
        const text = unit ? unit(row[key]) : key === "client_id" && row.group ? `group ${row.group}` : row[key];
        const cell = make("td", text, unit ? {} : {class: "name", title: text});
        if (open && key === "topic" && last && last.reads) {
          const button = make("button", text, {type: "button"});
          button.addEventListener("click", () => open(row.topic));
          cell.replaceChildren(button);
        }
        line.append(cell);
      }
      body.append(line);
    }
    if (!answer.rows.length) {
      const line = make("tr");
      line.append(make("td", search.value ? "nothing is called so" : "none", {colspan: columns.length}));
      body.append(line);
    }
    const focused = document.activeElement && $(id).contains(document.activeElement) ? document.activeElement.textContent.split(" ")[0] : null;
    $(id).replaceChildren(top, body);
    if (focused) for (const button of $(id).querySelectorAll("th button")) if (button.textContent.startsWith(focused)) button.focus();
    const known = answer.known !== undefined && answer.known < answer.all ? `, the ${count(answer.known)} furthest behind` : "";
    $(`${id}-count`).textContent = `${count(answer.all)}${known}`;
    const end = place.first + answer.rows.length;
    const bar = $(`${id}-pages`);
    bar.replaceChildren();
    for (const [text, to, possible] of [["‹ before", place.first - ROWS, place.first > 0], ["next ›", end, end < answer.found]]) {
      const button = make("button", text, {type: "button"});
      button.disabled = !possible;
      button.addEventListener("click", () => { place.first = Math.max(0, to); refresh(); });
      bar.append(button);
    }
    if (answer.found) bar.append(`${place.first + 1}–${end} of ${answer.found.toLocaleString("en")}`);
  }
  let typed;
  search.addEventListener("input", () => {
    clearTimeout(typed);
    typed = setTimeout(() => { place.first = 0; refresh(); }, 200);
  });
  return refresh;
}

const refreshers = [
  table("topics", "/topics.json", [["topic", "topic"], ["rate", "per s", count], ["backlog", "unread", count], ["bytes", "bytes", bytes], ["subscribers", "subscribers", count], ["publications", "last id", count]], "backlog", read),
  table("subscriptions", "/subscriptions.json", [["topic", "topic"], ["client_id", "client or group"], ["lag", "behind", count], ["cursor", "cursor", count]], "lag"),
];

function tables() {
  if (document.visibilityState === "visible" && !lostAt) for (const refresh of refreshers) refresh();
}
setInterval(tables, TABLES_MS);

// --- publications: looked at, as the user of http_reads_as may ---

const READ_ROWS = 20;
let reads = 0;

async function read(topic, from) {
  const mine = ++reads;
  const query = new URLSearchParams({topic, count: READ_ROWS});
  if (from !== undefined) query.set("from", from);
  let answer = {topic, rows: []};
  try {
    answer = await (await ask(`/publications.json?${query}`)).json();
  } catch (error) {
    answer.trouble = error.message;
  }
  if (mine === reads) drawRead(answer);
}

function drawRead({topic, first_id, last_id, rows, trouble}) {
  $("read").hidden = false;
  $("read-topic").textContent = topic;
  $("read-range").textContent = trouble || first_id > last_id ? "" : `${first_id} to ${last_id} are there`;
  const body = make("tbody");
  for (const row of rows) {
    const line = make("tr");
    const said = Object.entries({...(row.key === null ? {} : {key: row.key}), ...row.headers});
    const cell = make("td", row.text, {class: "text"});
    if (said.length) cell.append(make("small", said.map(([name, value]) => `${name}: ${value}`).join(", ")));
    line.append(make("td", row.id), make("td", row.at_ms === null ? "–" : new Date(row.at_ms).toLocaleString()), make("td", bytes(row.bytes)), cell);
    body.append(line);
  }
  if (!rows.length) {
    const line = make("tr");
    line.append(make("td", trouble || "nothing is kept from there on", {colspan: 4}));
    body.append(line);
  }
  const head = make("tr");
  for (const name of ["id", "stored", "bytes"]) head.append(make("th", name, {scope: "col"}));
  head.append(make("th", "publication", {scope: "col", class: "name"}));
  const top = make("thead");
  top.append(head);
  $("read-rows").replaceChildren(top, body);
  $("read-pages").replaceChildren();
  if (trouble) return;
  const low = rows.length ? rows[0].id : last_id + 1, high = rows.length ? rows[rows.length - 1].id : last_id;
  for (const [text, from, possible] of [["‹ before", Math.max(first_id, low - READ_ROWS), low > first_id], ["next ›", high + 1, high < last_id], ["newest", undefined, true]]) {
    const button = make("button", text, {type: "button"});
    button.disabled = !possible;
    button.addEventListener("click", () => read(topic, from));
    $("read-pages").append(button);
  }
}

// --- what happened ---

const URGENT = ["warning", "error"];

function drawEvents() {
  $("events").replaceChildren(...events.slice(-LINES_MAX).reverse().map((event) => {
    const {at, event: name, level, ...fields} = event;
    const line = make("li", undefined, URGENT.includes(level) ? {class: "urgent"} : {});
    line.append(make("time", clock(at)), make("span", URGENT.includes(level) ? "⚠" : name === "role" ? "★" : "·", {"aria-hidden": "true"}), make("span", told(name, fields)));
    return line;
  }));
  if (!events.length) $("events").append(make("li", "nothing yet"));
}

function told(name, fields) {
  if (name === "role") {
    const leads = fields.leader && fields.role !== "leader" ? `, led by ${fields.leader}` : "";
    return `${fields.role} in term ${fields.term}${leads}: ${fields.reason}`;
  }
  const rest = Object.entries(fields).map(([key, value]) => `${key} ${typeof value === "object" ? JSON.stringify(value) : value}`);
  return `${name.replaceAll("_", " ")}${rest.length ? ": " : ""}${rest.join(", ")}`;
}

connect();
