//! Colours and output width. Styles are hand-written: a [`Style`] is copied into every character's cell and written as
//! one escape sequence; console's supports neither.

use std::{io::IsTerminal, sync::OnceLock};

/// Text style.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Style {
    /// Codes of an escape sequence: 1 bold, 2 dim, 4 underlined, 7 inverse.
    pub codes: &'static str,
    /// Index into the terminal's 256 colours.
    pub colour: Option<u8>,
}

impl Style {
    pub const PLAIN: Style = Style { codes: "", colour: None };
    pub const BOLD: Style = Style { codes: "1", colour: None };
    pub const DIM: Style = Style { codes: "2", colour: None };
}

/// From red through orange and ochre to green, for a probability; each with a contrast of 3 or more on black and on
/// white.
pub fn ramp(p: f64) -> u8 {
    match p {
        p if p >= 0.95 => 28,
        p if p >= 0.8 => 136,
        p if p >= 0.5 => 166,
        _ => 160,
    }
}

/// Set by [`TermStyle::choose_colour`].
static CHOICE: OnceLock<bool> = OnceLock::new();

/// Capabilities of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TermStyle {
    pub colour: bool,
    /// In columns.
    pub width: usize,
}

impl TermStyle {
    /// Forces colours on standard output on or off, once and for all, whether or not it is a terminal.
    pub fn choose_colour(always: bool) {
        let _ = CHOICE.set(always);
    }

    /// For standard output. Unless a choice was made, colour requires a terminal and neither `NO_COLOR` nor
    /// `TERM=dumb`. The width is that of `COLUMNS` or the terminal, capped at a readable width, which is also the
    /// default.
    pub fn of_stdout() -> TermStyle {
        const MAX_WIDTH: usize = 120;
        const MIN_WIDTH: usize = 40;
        let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let columns = std::env::var("COLUMNS").ok().and_then(|columns| columns.trim().parse().ok());
        let terminal = || console::Term::stdout().size_checked().map(|(_, columns)| usize::from(columns));
        let width = columns.or_else(|| terminal().filter(|&columns| columns > 0)).unwrap_or(MAX_WIDTH);
        let usual = || std::io::stdout().is_terminal() && !set("NO_COLOR") && !dumb;
        let colour = CHOICE.get().copied().unwrap_or_else(usual);
        TermStyle { colour, width: width.clamp(MIN_WIDTH, MAX_WIDTH) }
    }

    /// The text in this style if colours are enabled, followed by a reset.
    pub fn paint(self, style: Style, text: &str) -> String {
        if !self.colour || style == Style::PLAIN || text.is_empty() {
            return text.to_owned();
        }
        let colour = style.colour.map(|colour| format!("38;5;{colour}")).unwrap_or_default();
        let between = if style.codes.is_empty() || colour.is_empty() { "" } else { ";" };
        format!("\x1b[{}{between}{colour}m{text}\x1b[0m", style.codes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn styles_are_closed_and_plain_text_is_bare() {
        let style = Style { codes: "1;4", colour: Some(114) };
        let terminal = TermStyle { colour: true, width: 80 };
        assert_eq!(terminal.paint(style, "x"), "\x1b[1;4;38;5;114mx\x1b[0m");
        assert_eq!(terminal.paint(Style::PLAIN, "x"), "x");
        assert_eq!(terminal.paint(style, ""), "");
        assert_eq!(TermStyle { colour: false, width: 80 }.paint(style, "x"), "x");
    }

    #[test]
    fn the_ramp_takes_any_number() {
        assert_eq!([0.0, 0.5, 0.8, 0.95, 1.0, f64::NAN].map(ramp), [160, 166, 136, 28, 28, 160]);
    }
}
