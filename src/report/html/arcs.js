// Arrows over a response: from each token of the chain to the token it was reached from.

/// Draws one token's arrows (to the token it was reached from, and from those reached from it), every token's if so
/// selected, or none.
function drawArcs(view, token) {
  view.response.querySelector("svg")?.remove();
  const all = byId("v-arcs").checked;
  token ??= view.held;
  if (token === null && !all) return;
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("aria-hidden", "true");
  for (const [reached, link] of view.links) {
    if (link.from === null) continue;
    const part = reached === token ? "" : link.from === token ? " out" : " faint";
    if (all || part !== " faint") arrow(view, svg, reached, link, part);
  }
  view.response.append(svg);
}

/// The weaker the link, the fainter its arrow.
function arrow(view, svg, reached, link, part) {
  const [start, end] = [place(view, reached), place(view, link.from)];
  if (!start || !end) return;
  // Up out of one token and down onto the other; on the same line, the longer the arc the higher it rises.
  const lift = Math.min(46, 12 + Math.hypot(end.x - start.x, end.y - start.y) / 6);
  const peak = { x: (start.x + end.x) / 2, y: Math.min(start.y, end.y) - lift };
  const angle = Math.atan2(end.y - peak.y, end.x - peak.x);
  const barb = (turn) => `${(end.x - 8 * Math.cos(angle + turn)).toFixed(1)} ${(end.y - 8 * Math.sin(angle + turn)).toFixed(1)}`;
  const path = document.createElementNS(svg.namespaceURI, "path");
  path.setAttribute("class", "arc" + part);
  path.setAttribute("opacity", (0.25 + 0.75 * Math.min(1, Math.max(0, link.score) / view.strongest)).toFixed(2));
  path.setAttribute("d", `M${start.x} ${start.y}Q${peak.x} ${peak.y} ${end.x} ${end.y}L${barb(-0.45)}M${end.x} ${end.y}L${barb(0.45)}`);
  svg.append(path);
}

/// The middle of a token's upper edge, in the response's box.
function place(view, token) {
  const box = view.spans.get(token)?.getClientRects()[0];
  if (!box) return null;
  const origin = view.response.getBoundingClientRect();
  return { x: Math.round(box.left + box.width / 2 - origin.left), y: Math.round(box.top - origin.top) };
}

/// Heat and arrows of every open item.
function redraw() {
  for (const { view } of document.querySelectorAll(".response")) {
    if (!view) continue; // one that is still being written
    colour(view);
    drawArcs(view, null);
  }
}
