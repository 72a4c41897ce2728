// One item: question, response with its chain, alternatives, scores.

function drawItem(item) {
  const body = make("div", "body");
  body.append(make("h3", "", "Question"), make("p", "text", ...withFormulas(item.question)));
  const answer = item.answer === undefined ? ["none"] : withFormulas(item.answer);
  const facts = make("dl", "facts", ...fact("right answer", ...withFormulas(item.target)), ...fact("answer", ...answer));
  body.append(facts);
  if (item.error) body.append(make("p", "note", "Error: " + item.error));
  if (item.tokens.length || item.gaps.length) body.append(make("h3", "", "Response"), ...drawResponse(item));
  if (item.ensemble.length > 1) body.append(make("h3", "", "Alternatives, by their effect on P"), drawAlternatives(item));
  body.append(make("h3", "", "Confidence by method"), drawScores(item));
  return body;
}

function fact(name, ...value) {
  return [make("div", "", make("dt", "", name), make("dd", "", ...value))];
}

/// A token's text on one line, so that its spaces can be seen.
function quoted(text) {
  return text === "" ? "(no text)" : JSON.stringify(text);
}

/// What is known of each token: its part in the chain.
function roles(item) {
  const links = new Map(item.chain.map(([token, score, similarity, from]) => [token, { score, similarity, from }]));
  const kept = new Set(item.kept);
  const inAnswer = (token) => item.span !== undefined && token >= item.span[0] && token < item.span[1];
  return { links, kept, inAnswer };
}

function drawResponse(item) {
  const { links, kept, inAnswer } = roles(item);
  const response = make("div", "response");
  const gaps = new Map(item.gaps);
  const spans = new Map();
  for (let token = 0; token <= item.tokens.length; token++) {
    if (gaps.has(token)) response.append(gaps.get(token));
    if (token === item.tokens.length) break;
    const part = (links.has(token) ? " link" : "") + (kept.has(token) ? " kept" : "") + (inAnswer(token) ? " answer" : "");
    const text = item.tokens[token];
    if (text === "" && !part) continue;
    const lead = part && text.trim() !== "" ? text.length - text.trimStart().length : 0; // space before a word is not marked
    if (lead) response.append(text.slice(0, lead));
    const span = make("span", "token" + part, ...visibleText(text.slice(lead), part));
    span.dataset.token = token;
    if (part) markUp(span, text, kept.has(token), inAnswer(token));
    spans.set(token, span);
    response.append(span);
  }
  const first = response.querySelector("[role=button]");
  if (first) first.tabIndex = 0;
  const detail = make("p", "detail", "Point at a token, or choose one with the arrow keys.");
  detail.setAttribute("aria-live", "polite");
  const strongest = Math.max(1e-9, ...[...links.values()].map((link) => link.score));
  const view = { item, strongest, links, kept, inAnswer, response, spans, detail, held: null };
  response.view = view;
  colour(view);
  listen(view);
  requestAnimationFrame(() => drawArcs(view, null));
  return [response, detail];
}

/// Tokens of the chain that are nothing but space get a sign; a newline stays one.
function visibleText(text, marked) {
  if (!marked || text.trim() !== "") return [text];
  const sign = make("span", "space", text === "" ? "▯" : text.includes("\n") ? "⏎" : "␣");
  sign.setAttribute("aria-hidden", "true");
  return text.includes("\n") ? [sign, text] : [sign];
}

function markUp(span, text, kept, answer) {
  span.setAttribute("role", "button");
  span.setAttribute("aria-pressed", "false");
  span.setAttribute("aria-label", `${text.trim() || "space"}, ${answer ? "answer" : kept ? "kept" : "chain"}`);
  span.tabIndex = -1;
}

/// The heat map: eight steps of the chosen quantity, relative to the response's largest.
function colour(view) {
  const quantity = byId("v-heat").value;
  const { item, links, spans } = view;
  const value = (token) => {
    if (quantity === "p") return item.p[token] == null ? 0 : 1 - item.p[token];
    return Math.max(0, links.get(token)?.[quantity] ?? 0);
  };
  const max = quantity === "p" ? 1 : Math.max(0, ...[...links.keys()].map(value));
  for (const [token, span] of spans) {
    const step = max > 0 ? Math.round((8 * value(token)) / max) : 0;
    const classes = [...span.classList].filter((name) => !/^(cool|warm)\d$/.test(name));
    if (step > 0) classes.push((quantity === "p" ? "warm" : "cool") + step);
    span.className = classes.join(" ");
  }
}

function listen(view) {
  const tokenAt = (event) => {
    const span = event.target.closest?.("[data-token]");
    return span ? Number(span.dataset.token) : null;
  };
  const { response } = view;
  response.addEventListener("pointerover", (event) => view.held === null && tokenAt(event) !== null && show(view, tokenAt(event)));
  response.addEventListener("pointerleave", () => view.held === null && drawArcs(view, null));
  response.addEventListener("focusin", (event) => view.held === null && tokenAt(event) !== null && show(view, tokenAt(event)));
  response.addEventListener("click", (event) => tokenAt(event) !== null && hold(view, tokenAt(event)));
  response.addEventListener("keydown", (event) => key(view, event, tokenAt(event)));
}

function key(view, event, token) {
  const marked = [...view.response.querySelectorAll("[role=button]")];
  const at = marked.findIndex((span) => Number(span.dataset.token) === token);
  const next = { ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1, Home: 0, End: marked.length - 1 }[event.key];
  if (next !== undefined && marked[next]) {
    marked[at] && (marked[at].tabIndex = -1);
    marked[next].tabIndex = 0;
    if (view.held !== null) hold(view, Number(marked[next].dataset.token));
    marked[next].focus();
  } else if (event.key === "Enter" || event.key === " ") {
    if (token !== null) hold(view, token);
  } else if (event.key === "Escape") {
    if (view.held !== null) hold(view, view.held);
  } else if (next === undefined) {
    return;
  }
  event.preventDefault();
}

/// Holds on to a token; to the same again: lets go.
function hold(view, token) {
  const again = view.held === token;
  for (const span of view.response.querySelectorAll(".held")) {
    span.classList.remove("held");
    span.setAttribute("aria-pressed", "false");
  }
  view.held = again ? null : token;
  if (!again) {
    view.spans.get(token)?.classList.add("held");
    view.spans.get(token)?.setAttribute("aria-pressed", "true");
  }
  show(view, again ? null : token);
}

/// Numbers of a token under the response, and its arrows.
function show(view, token) {
  drawArcs(view, token);
  if (token === null) return;
  const { item, links, kept, inAnswer, detail } = view;
  const link = links.get(token);
  const facts = [`row ${token - 1}`, `p ${number(item.p[token])}`];
  if (link && !inAnswer(token)) facts.push(`φ ${number(link.score)}`);
  if (link) facts.push(`similarity ${number(link.similarity)}`);
  if (link && link.from !== null) facts.push(`reached from ${quoted(item.tokens[link.from] ?? "")} (row ${link.from - 1})`);
  if (inAnswer(token)) facts.push("answer");
  else if (kept.has(token)) facts.push("kept");
  else if (link) facts.push("chain, not kept");
  const total = item.ensemble.reduce((sum, member) => sum + member[2], 0);
  const alternatives = item.ensemble.filter((member) => member[0] === token);
  const effects = alternatives.map(([, text, share]) => `${quoted(text)} adds ${number(share)} (${percent(share, total)} of P)`);
  detail.replaceChildren(make("b", "", quoted(item.tokens[token])), " · " + facts.join(" · "));
  if (effects.length) detail.append(make("br"), "Alternatives: " + effects.join("; "));
}

function percent(part, whole) {
  return whole > 0 ? `${((100 * part) / whole).toFixed(1)} %` : "–";
}

/// A table in a box that scrolls by itself.
function drawTable(label, header, rows) {
  const cells = (row, tag) => make("tr", "", ...row.map((cell, i) => make(tag, typeof cell === "number" || i > 2 ? "number" : "", typeof cell === "number" ? number(cell) : cell)));
  const box = make("div", "scroll", make("table", "", make("thead", "", cells(header, "th")), make("tbody", "", ...rows.map((row) => cells(row, "td")))));
  box.tabIndex = 0; // it scrolls where the page is narrow
  box.setAttribute("role", "region");
  box.setAttribute("aria-label", label);
  return box;
}

function drawAlternatives(item) {
  const total = item.ensemble.reduce((sum, member) => sum + member[2], 0);
  const row = ([token, text, share]) =>
    token === null
      ? ["–", "the response itself", "", number(share), percent(share, total)]
      : [String(token - 1), quoted(item.tokens[token] ?? ""), quoted(text), number(share), percent(share, total)];
  const members = item.ensemble.slice().sort((a, b) => b[2] - a[2]);
  return drawTable(`Alternatives of ${HEAD.runs[item.run].model} ${item.task ?? HEAD.runs[item.run].task} ${item.id}`, ["row", "instead of", "write", "adds to P", "of P"], members.map(row));
}

function drawScores(item) {
  const list = make("dl", "facts");
  for (const [i, method] of HEAD.methods.entries()) {
    if (item.scores[i] !== undefined) list.append(...fact(method[1], number(item.scores[i])));
  }
  return list;
}
