//! A picture under construction: title, panels with axes and legend, stacked vertically.

use super::text::{self, SMALL, escape};
use super::{Picture, axis::Axis};

pub const WIDTH: f64 = 420.0;
const EDGE: f64 = 10.0;
/// Room for tick labels and the axis title on the left, unless a label is wider; the same for all stacked panels.
const LEFT: f64 = 66.0;
/// Font size of text and of titles.
const SIZE: f64 = 12.0;
const TITLE: f64 = 14.0;
/// Width of bold text relative to regular.
const BOLD: f64 = 1.1;

/// Style of a series, in a panel and in the legend. Colours are roles of [`theme`](super::theme).
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Look {
    /// Filled with a colour.
    Area(&'static str),
    /// Hatched, with an outline.
    Hatched,
    /// Colour, width and dashes.
    Line(&'static str, f64, &'static str),
    /// Shape index and colour.
    Mark(usize, &'static str),
}

/// A picture in the making: title, panels and legend from top to bottom.
pub struct Drawing {
    name: String,
    title: String,
    body: String,
    /// Top of the next element.
    y: f64,
}

/// Plot area: the inside of a pair of axes.
pub struct Panel<'d> {
    drawing: &'d mut Drawing,
    x: Axis,
    y: Axis,
    left: f64,
    top: f64,
    width: f64,
    height: f64,
}

impl Panel<'_> {
    /// Position of a point, in picture units.
    fn place(&self, (x, y): (f64, f64)) -> (f64, f64) {
        (self.left + self.x.share(x) * self.width, self.top + (1.0 - self.y.share(y)) * self.height)
    }

    /// Draws an area between two corners, a line through points, or a mark at each point, all in data coordinates.
    /// Points with a non-finite coordinate are left out, as are points of a line in the same unit of the picture's
    /// width as a later one.
    pub fn draw(&mut self, look: Look, points: &[(f64, f64)]) {
        let mut places: Vec<(f64, f64)> = Vec::new();
        for point in points.iter().filter(|(x, y)| x.is_finite() && y.is_finite()) {
            let place = self.place(*point);
            let column = |x: f64| (x - self.left).round();
            let crowded = |last: &(f64, f64)| column(last.0) == column(place.0);
            if matches!(look, Look::Line(..)) && places.len() > 1 && places.last().is_some_and(crowded) {
                places.pop();
            }
            places.push(place);
        }
        self.drawing.draw(look, &places);
    }

    /// What `draw` draws, with a tooltip.
    pub fn titled(&mut self, title: &str, draw: impl FnOnce(&mut Self)) {
        self.drawing.body += &format!("<g><title>{}</title>", escape(title));
        draw(self);
        self.drawing.body += "</g>";
    }

    /// A note in the middle of the panel, if it is empty.
    pub fn note_if(&mut self, is_empty: bool, note: &str) {
        if is_empty {
            let (x, y) = (self.left + self.width / 2.0, self.top + self.height / 2.0);
            self.drawing.write(x, y, "middle", "f-dim", note);
        }
    }

    /// Grid and ticks.
    fn axes(&mut self) {
        const GRID: Look = Look::Line("grid", 1.0, "");
        let ((x0, x1), (y0, y1)) = (self.x.domain, self.y.domain);
        for (at, text) in self.y.ticks.clone() {
            self.draw(GRID, &[(x0, at), (x1, at)]);
            let (left, y) = self.place((x0, at));
            self.drawing.write(left - 6.0, y + 4.0, "end", "t-small f-dim", &text);
        }
        let room = self.width / (self.x.ticks.len().max(2) - 1) as f64;
        let every = ((self.x.widest().max(1.0) + 8.0) / room).ceil() as usize;
        for (i, (at, text)) in self.x.ticks.clone().into_iter().enumerate() {
            self.draw(GRID, &[(at, y0), (at, y1)]);
            if i.is_multiple_of(every) {
                let (x, bottom) = self.place((at, y0));
                // The last one must stay inside the picture.
                let x = x.min(WIDTH - 2.0 - text::width(&text, SMALL) / 2.0);
                self.drawing.write(x, bottom + 16.0, "middle", "t-small f-dim", &text);
            }
        }
        self.draw(Look::Line("axis", 1.0, ""), &[(x0, y1), (x0, y0), (x1, y0)]);
    }
}

impl Drawing {
    /// `name`: letters, digits, `.`, `-` and `_`. `subtitle`: model, task, items, the summary value.
    pub fn new(name: &str, title: &str, subtitle: &str) -> Drawing {
        let mut drawing = Drawing { name: name.to_owned(), title: title.to_owned(), body: String::new(), y: EDGE };
        drawing.body += &format!(
            "<pattern id=\"{name}-hatch\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\" \
             patternTransform=\"rotate(45)\"><path d=\"M0 0V6\" class=\"l-s1\" stroke-width=\"2.5\"/></pattern>"
        );
        for (text, size, lines, height, class) in
            [(title, TITLE * BOLD, 2, 17.0, "t-title f-ink"), (subtitle, SIZE, 3, 16.0, "f-dim")]
        {
            for line in text::wrap(text, size, WIDTH - 2.0 * EDGE, lines) {
                drawing.y += height;
                drawing.write(EDGE, drawing.y - 3.0, "start", class, &line);
            }
        }
        drawing
    }

    /// Adds text on top; `anchor` is SVG's `text-anchor`.
    fn write(&mut self, x: f64, y: f64, anchor: &str, class: &str, text: &str) {
        let ([x, y], text) = ([x, y].map(units), escape(text));
        self.body += &format!("<text x=\"{x}\" y=\"{y}\" text-anchor=\"{anchor}\" class=\"{class}\">{text}</text>");
    }

    /// Like [`Panel::draw`], in picture units; a line of one point is a dot.
    fn draw(&mut self, look: Look, points: &[(f64, f64)]) {
        let attributes = match look {
            Look::Area(role) => format!("class=\"f-{role} l-paper\" stroke-width=\"0.5\""),
            Look::Hatched => format!("class=\"l-s1\" fill=\"url(#{}-hatch)\"", self.name),
            Look::Line(role, width, dashes) => {
                format!("class=\"l-{role}\" stroke-width=\"{width}\" stroke-dasharray=\"{dashes}\"")
            }
            Look::Mark(_, role) => format!("class=\"f-{role} l-paper\""),
        };
        let at = |(x, y): &(f64, f64)| format!("{} {}", units(*x), units(*y));
        match (look, points) {
            (Look::Area(_) | Look::Hatched, &[(x0, y0), (x1, y1)]) => {
                let (width, height) = ((x1 - x0).abs(), (y1 - y0).abs());
                let [x, y, w, h] = [x0.min(x1), y0.min(y1), width, height].map(units);
                if width >= 0.01 && height >= 0.01 {
                    self.body += &format!("<rect x=\"{x}\" y=\"{y}\" width=\"{w}\" height=\"{h}\" {attributes}/>");
                }
            }
            (Look::Line(role, ..), [_]) => self.draw(Look::Mark(0, role), points),
            (Look::Line(..), [_, _, ..]) => {
                let line = points.iter().map(at).collect::<Vec<_>>().join("L");
                self.body += &format!("<path d=\"M{line}\" {attributes}/>");
            }
            (Look::Mark(shape, _), _) => {
                for point in points {
                    self.body += &format!("<path d=\"M{}{}\" {attributes}/>", at(point), SHAPES[shape % SHAPES.len()]);
                }
            }
            _ => {}
        }
    }

    /// Axes with their grid, titles and ticks, in the space below the last element.
    pub fn panel(&mut self, height: f64, x: Axis, y: Axis) -> Panel<'_> {
        let left = (32.0 + y.widest()).clamp(LEFT, WIDTH / 3.0);
        self.panel_between(left, WIDTH - EDGE - 6.0, height, x, y)
    }

    /// Two panels over the same rows: `names` labels the rows by position; `draw` receives the panel's index.
    pub fn rows(&mut self, height: f64, names: Axis, x: [Axis; 2], draw: impl Fn(usize, &mut Panel)) {
        const GAP: f64 = 26.0;
        let (y, left) = (self.y, EDGE + names.widest() + 8.0);
        let width = (WIDTH - EDGE - 6.0 - left - GAP) / 2.0;
        for (i, x) in x.into_iter().enumerate() {
            let named = |(at, name): &(f64, String)| (*at, if i == 0 { name.clone() } else { String::new() });
            let names = Axis { ticks: names.ticks.iter().map(named).collect(), ..names.clone() };
            let left = left + i as f64 * (width + GAP);
            self.y = y;
            draw(i, &mut self.panel_between(left, left + width, height, x, names));
        }
    }

    fn panel_between(&mut self, left: f64, right: f64, height: f64, x: Axis, y: Axis) -> Panel<'_> {
        let (top, width) = (self.y + 12.0, right - left);
        let bottom = top + height;
        self.write(left + width / 2.0, bottom + 33.0, "middle", "f-ink", &x.label);
        let ([across, up], label) = ([EDGE + SIZE, top + height / 2.0].map(units), escape(&y.label));
        self.body += &format!(
            "<text transform=\"translate({across} {up}) rotate(-90)\" text-anchor=\"middle\" class=\"f-ink\">{label}</text>"
        );
        self.y = bottom + 38.0;
        let mut panel = Panel { drawing: self, x, y, left, top, width, height };
        panel.axes();
        panel
    }

    /// The legend, in columns.
    pub fn legend(&mut self, entries: &[(Look, String)]) {
        const ROW: f64 = 17.0;
        const SIGN: f64 = 25.0;
        let room = WIDTH - 2.0 * EDGE;
        let widest = entries.iter().map(|(_, text)| text::width(text, SMALL)).fold(0.0, f64::max) + SIGN + 3.0;
        let columns = ((room / widest).floor().max(1.0) as usize).min(4);
        let rows = entries.len().div_ceil(columns);
        let column_width = room / columns as f64;
        for (i, (look, text)) in entries.iter().enumerate() {
            let (column, row) = (i / rows, i % rows);
            let (x, y) = (EDGE + column as f64 * column_width, self.y + 10.0 + row as f64 * ROW);
            match *look {
                Look::Area(role) => self.draw(Look::Line(role, 10.0, ""), &[(x, y), (x + 20.0, y)]),
                Look::Hatched => self.draw(*look, &[(x, y - 5.0), (x + 20.0, y + 5.0)]),
                Look::Line(..) => self.draw(*look, &[(x, y), (x + 20.0, y)]),
                Look::Mark(..) => self.draw(*look, &[(x + 10.0, y)]),
            }
            let text = text::cut(text, SMALL, column_width - SIGN);
            self.write(x + SIGN, y + 4.0, "start", "t-small f-ink", &text);
        }
        self.y += rows as f64 * ROW + 6.0;
    }

    /// `description`: the picture's text alternative.
    pub fn finish(self, description: String) -> Picture {
        let height = (self.y + EDGE).ceil() as u32;
        let paper = format!("<rect width=\"{WIDTH}\" height=\"{height}\" class=\"f-paper\"/>");
        Picture { name: self.name, title: self.title, description, height, body: paper + &self.body }
    }
}

/// Paths of the shapes after `M x y`: circle, square, triangles, diamond, cross.
const SHAPES: [&str; 8] = [
    "m-5 0a5 5 0 1 0 10 0a5 5 0 1 0-10 0",
    "m-4.5-4.5h9v9h-9z",
    "m0-6 5.5 10h-11z",
    "m0-6.5 6.5 6.5-6.5 6.5-6.5-6.5z",
    "m0 6-5.5-10h11z",
    "m-2-6h4v4h4v4h-4v4h-4v-4h-4v-4h4z",
    "m-6 0 10-5.5v11z",
    "m6 0-10-5.5v11z",
];

/// A length with at most two decimals. A non-finite one becomes 0.
fn units(value: f64) -> String {
    let rounded = (value * 100.0).round() / 100.0;
    if rounded.is_finite() && rounded != 0.0 { rounded.to_string() } else { "0".to_owned() } // no "-0"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_short() {
        let lengths = [1.0, 1.005, -0.001, 12.345678, f64::NAN, f64::INFINITY].map(units);
        assert_eq!(lengths, ["1", "1", "0", "12.35", "0", "0"]);
    }
}
