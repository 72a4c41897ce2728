// One item: question, response with its chain, alternatives, scores.

function drawItem(item) {
  const body = make("div", "body");
  body.append(make("h3", "", "Question"), make("p", "text", ...withFormulas(item.question)));
  const answer = item.answer === undefined ? ["none"] : withFormulas(item.answer);
  body.append(make("dl", "facts", fact("right answer", ...withFormulas(item.target)), fact("answer", ...answer)));
  if (item.error) body.append(make("p", "note", "Error: " + item.error));
  if (item.tokens.length || item.gaps.length) body.append(make("h3", "", "Response"), ...drawResponse(item));
  if (item.ensemble.length > 1) body.append(make("h3", "", "Alternatives, by their effect on P"), drawAlternatives(item));
  body.append(make("h3", "", "Scores"), drawScores(item));
  return body;
}

function fact(name, ...value) {
  return make("div", "", make("dt", "", name), make("dd", "", ...value));
}

/// A token's text on one line, quoted to make its spaces visible.
function quoted(text) {
  return text === "" ? "(no text)" : JSON.stringify(text);
}

/// The response with its chain marked, and a line for the values of a token.
function drawResponse(item) {
  const links = new Map(item.chain.map(([token, score, similarity, from]) => [token, { score, similarity, from }]));
  const kept = new Set(item.kept);
  const [begin, end] = item.span ?? [0, 0];
  const inAnswer = (token) => token >= begin && token < end;
  const response = make("div", "response");
  const detail = make("p", "detail", "Point at or tap a token, or choose one with the arrow keys.");
  detail.setAttribute("aria-live", "polite");
  const strongest = Math.max(1e-9, ...item.chain.map(([, score]) => score));
  const view = { item, strongest, links, kept, inAnswer, response, spans: new Map(), marked: [], detail, held: null };
  response.view = view;
  const gaps = new Map(item.gaps);
  const thought = make("details", "thought", make("summary", "", `Thought (${item.thought} tokens)`));
  thought.addEventListener("toggle", () => drawArcs(view, null));
  if (item.thought) response.append(thought);
  for (const [token, text] of item.tokens.entries()) {
    const into = token < (item.thought ?? 0) ? thought : response;
    if (gaps.has(token)) into.append(gaps.get(token));
    const part = (links.has(token) ? " link" : "") + (kept.has(token) ? " kept" : "") + (inAnswer(token) ? " answer" : "");
    if (text === "" && !part) continue;
    const lead = part && text.trim() !== "" ? text.length - text.trimStart().length : 0; // space before a word is not marked
    const span = make("span", "token" + part, ...visibleText(text.slice(lead), part));
    span.dataset.token = token;
    if (part) {
      span.setAttribute("role", "button");
      span.setAttribute("aria-pressed", "false");
      span.setAttribute("aria-label", `${text.trim() || "space"}, ${inAnswer(token) ? "answer" : kept.has(token) ? "kept" : "chain"}`);
      span.tabIndex = view.marked.length ? -1 : 0;
      view.marked.push(token);
    }
    view.spans.set(token, span);
    into.append(text.slice(0, lead), span);
  }
  response.append(gaps.get(item.tokens.length) ?? "");
  colour(view);
  listen(view);
  requestAnimationFrame(() => drawArcs(view, null));
  return [response, detail];
}

/// Whitespace-only tokens of the chain get a symbol; a newline also stays one.
function visibleText(text, marked) {
  if (!marked || text.trim() !== "") return [text];
  const sign = make("span", "space", text === "" ? "▯" : text.includes("\n") ? "⏎" : "␣");
  sign.setAttribute("aria-hidden", "true");
  return text.includes("\n") ? [sign, text] : [sign];
}

/// The heat map of the selected quantity, relative to the response's maximum.
function colour({ item, links, spans }) {
  const quantity = byId("v-heat").value;
  const isP = quantity === "p";
  const value = (token) => (isP ? 1 - (item.p[token] ?? 1) : Math.max(0, links.get(token)?.[quantity] ?? 0));
  const max = isP ? 1 : Math.max(0, ...[...links.keys()].map(value));
  for (const [token, span] of spans) {
    const heat = max > 0 ? (0.9 * value(token)) / max : 0;
    span.style.background = heat > 0.05 ? `rgb(var(--${isP ? "warm" : "cool"}) / ${heat.toFixed(2)})` : "";
  }
}

function listen(view) {
  const { response } = view;
  const on = (name, act) => response.addEventListener(name, (event) => {
    const span = event.target.closest?.("[data-token]");
    act(span ? Number(span.dataset.token) : null, event);
  });
  for (const name of ["pointerover", "focusin"]) on(name, (token) => view.held === null && token !== null && show(view, token));
  on("click", (token) => token !== null && hold(view, token));
  on("keydown", (token, event) => key(view, token, event));
  response.addEventListener("pointerleave", () => view.held === null && drawArcs(view, null));
}

function key(view, token, event) {
  const { marked, spans, held } = view;
  const at = marked.indexOf(token);
  const next = { ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1, Home: 0, End: marked.length - 1 }[event.key];
  if (marked[next] !== undefined) {
    for (const other of marked) spans.get(other).tabIndex = other === marked[next] ? 0 : -1;
    if (held !== null) hold(view, marked[next]);
    spans.get(marked[next]).focus();
  } else if (event.key === "Enter" || event.key === " ") {
    if (token !== null) hold(view, token);
  } else if (event.key === "Escape") {
    if (held !== null) hold(view, held);
  } else if (next === undefined) {
    return;
  }
  event.preventDefault();
}

/// Pins a token; selecting the same one again releases it.
function hold(view, token) {
  view.held = view.held === token ? null : token;
  for (const [other, span] of view.spans) {
    span.classList.toggle("held", other === view.held);
    if (span.hasAttribute("aria-pressed")) span.setAttribute("aria-pressed", other === view.held);
  }
  show(view, view.held);
}

/// Shows a token's values under the response, and its arrows.
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
  const alternatives = item.ensemble.filter((member) => member[0] === token);
  const effects = alternatives.map(([, text, share]) => `${quoted(text)} adds ${number(share)} (${shareOfP(item, share)} of P)`);
  detail.replaceChildren(make("b", "", quoted(item.tokens[token])), " · " + facts.join(" · "));
  if (effects.length) detail.append(make("br"), "Alternatives: " + effects.join("; "));
}

function shareOfP(item, share) {
  const p = item.ensemble.reduce((sum, member) => sum + member[2], 0);
  return p > 0 ? `${((100 * share) / p).toFixed(1)} %` : "–";
}

/// A table in a box with its own scrolling; `numbers` lists the numeric columns.
function table(item, label, heads, rows, numbers) {
  const cell = (tag) => (text, i) => make(tag, numbers.includes(i) ? "number" : "", text);
  const line = (cells, tag) => make("tr", "", ...cells.map(cell(tag)));
  const header = make("thead", "", line(heads, "th"));
  const box = make("div", "scroll", make("table", "", header, make("tbody", "", ...rows.map((row) => line(row, "td")))));
  box.tabIndex = 0; // it scrolls where the page is narrow
  box.setAttribute("role", "region");
  box.setAttribute("aria-label", `${label} of ${HEAD.runs[item.run].model} ${item.task ?? HEAD.runs[item.run].task} ${item.id}`);
  return box;
}

const ALTERNATIVES = 8; // shown at first

function drawAlternatives(item) {
  const members = item.ensemble.slice().sort((a, b) => b[2] - a[2]);
  const rows = members.map(([token, text, share]) => {
    const what = token === null ? ["–", "the response itself", ""] : [String(token - 1), quoted(item.tokens[token] ?? ""), quoted(text)];
    return [...what, number(share), shareOfP(item, share)];
  });
  const part = (label, rows) => table(item, label, ["row", "instead of", "write", "adds to P", "of P"], rows, [3, 4]);
  const box = make("div", "", part("Alternatives", rows.slice(0, ALTERNATIVES)));
  const rest = rows.slice(ALTERNATIVES);
  if (rest.length) box.append(make("details", "more", make("summary", "", `${rest.length} more`), part("Further alternatives", rest)));
  return box;
}

function drawScores(item) {
  const named = (key, name) => make("span", "", name + " ", make("code", "", key));
  const rows = HEAD.methods.map(([key, name, meaning], i) => [named(key, name), number(item.scores[i]), meaning]);
  return table(item, "Scores", ["score", "value", "meaning"], rows.filter((_, i) => item.scores[i] !== undefined), [1]);
}
