//! A picture under construction: title, panels with axes, legend, one below the other.

use super::axis::Axis;
use super::element::{Element, units};
use super::text;
use super::{Picture, theme};

const WIDTH: f64 = 420.0;
const EDGE: f64 = 10.0;
/// What tick labels and the axis title take on the left, if no label is wider; the same for panels below each other.
const LEFT: f64 = 66.0;
/// Size of text, of titles, and of ticks and legends.
const SIZE: f64 = 12.0;
const TITLE: f64 = 14.0;
/// How much wider bold text is.
const BOLD: f64 = 1.1;
/// Size of the small text, in units of the picture.
pub const SMALL: f64 = 11.0;

/// A picture in the making: title, panels and legend from top to bottom.
pub struct Drawing {
    name: String,
    title: String,
    body: String,
    /// Where the next part begins.
    y: f64,
}

/// Where data goes: the inside of a pair of axes.
#[derive(Clone, Debug)]
pub struct Panel {
    x: Axis,
    y: Axis,
    left: f64,
    top: f64,
    width: f64,
    height: f64,
}

impl Panel {
    /// The place of a value on the horizontal axis, in units of the picture.
    pub fn x(&self, value: f64) -> f64 {
        self.left + self.x.share(value) * self.width
    }

    /// The place of a value on the vertical axis, in units of the picture.
    pub fn y(&self, value: f64) -> f64 {
        self.top + (1.0 - self.y.share(value)) * self.height
    }

    /// The area between two corners, in data; `None` where nothing of it could be seen.
    pub fn rect(&self, x: (f64, f64), y: (f64, f64)) -> Option<Element> {
        let (x0, x1) = (self.x(x.0.min(x.1)), self.x(x.0.max(x.1)));
        let (y0, y1) = (self.y(y.0.max(y.1)), self.y(y.0.min(y.1)));
        let rect = Element::new("rect").num("x", x0).num("y", y0).num("width", x1 - x0).num("height", y1 - y0);
        (x1 - x0 >= 0.01 && y1 - y0 >= 0.01).then_some(rect)
    }

    /// A line between two points in data coordinates.
    pub fn line(&self, from: (f64, f64), to: (f64, f64)) -> Element {
        let (x1, y1, x2, y2) = (self.x(from.0), self.y(from.1), self.x(to.0), self.y(to.1));
        Element::new("line").num("x1", x1).num("y1", y1).num("x2", x2).num("y2", y2)
    }

    /// A line through the points, all finite.
    pub fn path(&self, points: &[(f64, f64)]) -> Element {
        let mut d = String::new();
        for (i, (x, y)) in points.iter().enumerate() {
            let command = if i == 0 { 'M' } else { 'L' };
            d += &format!("{command}{} {}", units(self.x(*x)), units(self.y(*y)));
        }
        Element::new("path").attr("d", &d)
    }
}

/// What stands before a legend's text.
#[derive(Clone, Debug, PartialEq)]
pub enum Sign {
    /// A line of a class, with dashes.
    Line { class: String, dashes: &'static str },
    /// A filled area of a class.
    Area { class: String },
    /// A hatched area with a pattern's name.
    Hatched { pattern: &'static str, class: String },
    /// A shape's number and class.
    Mark { shape: usize, class: String },
}

impl Drawing {
    /// `subtitle` says what is shown: model, task, items, the number that sums it up.
    pub fn new(name: &str, title: &str, subtitle: &str) -> Drawing {
        let mut drawing = Drawing { name: name.to_owned(), title: title.to_owned(), body: String::new(), y: EDGE };
        for line in text::wrap(title, TITLE * BOLD, WIDTH - 2.0 * EDGE, 2) {
            drawing.y += 17.0;
            drawing.write(EDGE, drawing.y - 3.0, "start", "t-title f-ink", &line);
        }
        for line in text::wrap(subtitle, SIZE, WIDTH - 2.0 * EDGE, 3) {
            drawing.y += 16.0;
            drawing.write(EDGE, drawing.y - 2.0, "start", "f-dim", &line);
        }
        drawing
    }

    /// Adds an element on top of those before it.
    pub fn push(&mut self, element: Element) {
        self.body += &element.into_xml();
    }

    /// Adds text on top; `anchor` is SVG's `text-anchor`.
    pub fn write(&mut self, x: f64, y: f64, anchor: &str, class: &str, text: &str) {
        let element = Element::new("text").num("x", x).num("y", y).attr("text-anchor", anchor).attr("class", class);
        self.push(element.text(text));
    }

    /// A hatching that [`Sign::Hatched`] and [`Drawing::hatch`] use.
    pub fn pattern(&mut self, pattern: &str, class: &str) {
        let line = Element::new("path").attr("d", "M0 0V6").attr("class", class).attr("stroke-width", "2.5");
        let element = Element::new("pattern").attr("id", &self.id(pattern));
        let element = element.attr("width", "6").attr("height", "6").attr("patternUnits", "userSpaceOnUse");
        self.push(element.attr("patternTransform", "rotate(45)").content(&line.into_xml()));
    }

    /// Fills an area with a hatching and draws its edge.
    pub fn hatch(&mut self, area: Element, pattern: &str, class: &str) {
        let fill = format!("url(#{})", self.id(pattern));
        self.push(area.attr("fill", &fill).attr("class", class).attr("stroke-width", "1"));
    }

    fn id(&self, part: &str) -> String {
        format!("{}-{part}", self.name)
    }

    /// Axes with their grid, titles and ticks; the space below the last part is taken.
    pub fn panel(&mut self, height: f64, x: Axis, y: Axis) -> Panel {
        let widest = y.ticks.iter().map(|(_, text)| text::width(text, SMALL)).fold(0.0, f64::max);
        let left = (32.0 + widest).clamp(LEFT, WIDTH / 3.0);
        let panel = Panel { x, y, left, top: self.y + 12.0, width: WIDTH - EDGE - 6.0 - left, height };
        self.grid(&panel);
        self.ticks(&panel);
        let (bottom, middle) = (panel.top + height, panel.left + panel.width / 2.0);
        self.write(middle, bottom + 33.0, "middle", "f-ink", &panel.x.label);
        let at = format!("translate({} {}) rotate(-90)", units(EDGE + SIZE), units(panel.top + height / 2.0));
        let label = Element::new("text").attr("transform", &at).attr("text-anchor", "middle").attr("class", "f-ink");
        self.push(label.text(&panel.y.label));
        self.y = bottom + 38.0;
        panel
    }

    fn grid(&mut self, panel: &Panel) {
        let (across, up) = (panel.x.domain, panel.y.domain);
        for (at, _) in &panel.y.ticks {
            self.push(panel.line((across.0, *at), (across.1, *at)).attr("class", "l-grid"));
        }
        for (at, _) in &panel.x.ticks {
            self.push(panel.line((*at, up.0), (*at, up.1)).attr("class", "l-grid"));
        }
        self.push(panel.line((across.0, up.0), (across.1, up.0)).attr("class", "l-axis"));
        self.push(panel.line((across.0, up.0), (across.0, up.1)).attr("class", "l-axis"));
    }

    fn ticks(&mut self, panel: &Panel) {
        let bottom = panel.top + panel.height;
        for (at, text) in &panel.y.ticks {
            self.write(panel.left - 6.0, panel.y(*at) + 4.0, "end", "t-small f-dim", text);
        }
        let widest = panel.x.ticks.iter().map(|(_, text)| text::width(text, SMALL)).fold(1.0, f64::max);
        let room = panel.width / (panel.x.ticks.len().max(2) - 1) as f64;
        let every = ((widest + 8.0) / room).ceil().max(1.0) as usize;
        for (at, text) in panel.x.ticks.iter().step_by(every) {
            // The last one must not leave the picture.
            let x = panel.x(*at).min(WIDTH - 2.0 - text::width(text, SMALL) / 2.0);
            self.write(x, bottom + 16.0, "middle", "t-small f-dim", text);
        }
    }

    /// A note in the middle of a panel that has nothing to show.
    pub fn nothing(&mut self, panel: &Panel, note: &str) {
        let (x, y) = (panel.left + panel.width / 2.0, panel.top + panel.height / 2.0);
        self.write(x, y, "middle", "f-dim", note);
    }

    /// Explains the signs, in as many columns as fit.
    pub fn legend(&mut self, entries: &[(Sign, String)]) {
        const ROW: f64 = 17.0;
        const SIGN: f64 = 25.0;
        let room = WIDTH - 2.0 * EDGE;
        let widest = entries.iter().map(|(_, text)| text::width(text, SMALL)).fold(0.0, f64::max) + SIGN + 3.0;
        let columns = ((room / widest).floor().max(1.0) as usize).min(4);
        let rows = entries.len().div_ceil(columns);
        let column_width = if columns > 1 { room / columns as f64 } else { room };
        for (i, (sign, text)) in entries.iter().enumerate() {
            let (column, row) = (i / rows.max(1), i % rows.max(1));
            let x = EDGE + column as f64 * column_width;
            let y = self.y + 10.0 + row as f64 * ROW;
            self.sign(sign, x, y);
            let text = text::cut(text, SMALL, column_width - SIGN);
            self.write(x + SIGN, y + 4.0, "start", "t-small f-ink", &text);
        }
        self.y += rows as f64 * ROW + 6.0;
    }

    fn sign(&mut self, sign: &Sign, x: f64, y: f64) {
        let area = || Element::new("rect").num("x", x).num("y", y - 5.0).num("width", 20.0).num("height", 10.0);
        match sign {
            Sign::Line { class, dashes } => {
                let line = Element::new("line").num("x1", x).num("y1", y).num("x2", x + 20.0).num("y2", y);
                self.push(line.attr("class", class).attr("stroke-width", "2").attr("stroke-dasharray", dashes));
            }
            Sign::Area { class } => self.push(area().attr("class", class)),
            Sign::Hatched { pattern, class } => self.hatch(area(), pattern, class),
            Sign::Mark { shape, class } => self.push(mark(*shape, x + 10.0, y, class)),
        }
    }

    /// `description`: the picture in words.
    pub fn finish(self, description: String) -> Picture {
        let height = (self.y + EDGE).ceil();
        let paper = Element::new("rect").num("width", WIDTH).num("height", height).attr("class", "f-paper");
        Picture {
            name: self.name,
            title: self.title,
            description,
            width: WIDTH as u32,
            height: height as u32,
            body: paper.into_xml() + &self.body,
        }
    }
}

/// The classes of a line and of an area in a series' colour.
pub fn line_class(i: usize) -> String {
    format!("l-s{}", theme::series(i).0)
}

/// The class that fills the i-th area.
pub fn area_class(i: usize) -> String {
    format!("f-s{}", theme::series(i).0)
}

/// One of eight shapes around a point.
pub fn mark(shape: usize, x: f64, y: f64, class: &str) -> Element {
    const R: f64 = 5.0;
    let polygon = |corners: &[(f64, f64)]| {
        let points: Vec<String> =
            corners.iter().map(|(dx, dy)| format!("{},{}", units(x + dx * R), units(y + dy * R))).collect();
        Element::new("polygon").attr("points", &points.join(" "))
    };
    let shape = match shape % 8 {
        0 => Element::new("circle").num("cx", x).num("cy", y).num("r", R),
        1 => polygon(&[(-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)]),
        2 => polygon(&[(0.0, -1.2), (1.1, 0.8), (-1.1, 0.8)]),
        3 => polygon(&[(0.0, -1.3), (1.3, 0.0), (0.0, 1.3), (-1.3, 0.0)]),
        4 => polygon(&[(0.0, 1.2), (1.1, -0.8), (-1.1, -0.8)]),
        5 => polygon(&[
            (-0.4, -1.2),
            (0.4, -1.2),
            (0.4, -0.4),
            (1.2, -0.4),
            (1.2, 0.4),
            (0.4, 0.4),
            (0.4, 1.2),
            (-0.4, 1.2),
            (-0.4, 0.4),
            (-1.2, 0.4),
            (-1.2, -0.4),
            (-0.4, -0.4),
        ]),
        6 => polygon(&[(-1.2, 0.0), (0.8, -1.1), (0.8, 1.1)]),
        _ => polygon(&[(1.2, 0.0), (-0.8, -1.1), (-0.8, 1.1)]),
    };
    shape.attr("class", &format!("{class} l-paper"))
}
