// Arrows over a response: from each token of the chain to where it was reached from.

const SVG = "http://www.w3.org/2000/svg";

/// Draws the arrows of a token (to where it was reached from, and from those that were reached from it), of all tokens if
/// that is chosen, or none.
function drawArcs(view, token) {
  const { response, links } = view;
  response.querySelector("svg")?.remove();
  const all = byId("v-arcs").checked;
  if (token === null && view.held !== null) token = view.held;
  if (token === null && !all) return;
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("aria-hidden", "true");
  for (const [reached, link] of links) {
    if (link.from === null) continue;
    const own = token !== null && (reached === token || link.from === token);
    if (!own && !all) continue;
    const className = own ? (reached === token ? "" : " out") : " faint";
    arrow(view, svg, reached, link, className);
  }
  response.append(svg);
}

/// The weaker the link, the fainter its arrow.
function arrow(view, svg, reached, link, className) {
  const [start, end] = [place(view, reached), place(view, link.from)];
  if (!start || !end) return;
  // Upwards out of the one token and down onto the other; on one line the arc is the higher the further it goes.
  const lift = Math.min(46, 12 + Math.hypot(end.x - start.x, end.y - start.y) / 6);
  const peak = { x: (start.x + end.x) / 2, y: Math.min(start.y, end.y) - lift };
  const path = document.createElementNS(SVG, "path");
  const opacity = (0.25 + 0.75 * Math.min(1, Math.max(0, link.score) / view.strongest)).toFixed(2);
  path.setAttribute("class", "arc" + className);
  path.setAttribute("opacity", opacity);
  path.setAttribute("d", `M${start.x} ${start.y}Q${peak.x} ${peak.y} ${end.x} ${end.y}`);
  const head = tip(peak, end, className);
  head.setAttribute("opacity", opacity);
  svg.append(path, head);
}

/// The arrow's head: a triangle that points along the end of the arc.
function tip(before, end, className) {
  const angle = Math.atan2(end.y - before.y, end.x - before.x);
  const corner = (turn, length) => `${end.x + length * Math.cos(angle + turn)},${end.y + length * Math.sin(angle + turn)}`;
  const polygon = document.createElementNS(SVG, "polygon");
  polygon.setAttribute("class", "tip" + className);
  polygon.setAttribute("points", [`${end.x},${end.y}`, corner(Math.PI - 0.45, 8), corner(Math.PI + 0.45, 8)].join(" "));
  return polygon;
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
  for (const response of document.querySelectorAll(".response")) {
    colour(response.view);
    drawArcs(response.view, null);
  }
}
