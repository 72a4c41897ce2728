//! Colours by role, light and dark.
//!
//! The series' colours are those of Okabe and Ito, distinguishable with any form of colour vision, darkened or
//! lightened to a contrast of at least 3 : 1 with the background. Nothing is conveyed by colour alone: lines
//! differ in their dashes, points in their shapes, areas in hatching or position.

/// Number of series colours.
pub const SERIES: usize = 8;

/// (name, light, dark); surfaces and text first, then `s0` ... `s7`.
const ROLES: [(&str, &str, &str); 5 + SERIES] = [
    ("paper", "#ffffff", "#15181c"),
    ("ink", "#1c1f23", "#e8eaed"),
    ("dim", "#596068", "#a9b1b9"),
    ("axis", "#868d95", "#757d85"),
    ("grid", "#e4e7eb", "#2b3137"),
    ("s0", "#0072b2", "#4f9fe0"), // blue
    ("s1", "#d55e00", "#f0793a"), // vermillion
    ("s2", "#008a64", "#2fbf93"), // bluish green
    ("s3", "#b4609a", "#d99bc4"), // reddish purple
    ("s4", "#b17a00", "#e69f00"), // orange
    ("s5", "#3892c6", "#8fd0f5"), // sky blue
    ("s6", "#1c1f23", "#e8eaed"), // black
    ("s7", "#857c00", "#f0e442"), // yellow
];

/// The classes of the pictures: `f-ROLE` fills, `l-ROLE` draws a line, `t`, `t-title`, `t-dim` are text.
///
/// Plain declarations, so that viewers without CSS variables support it; always light in print.
pub fn style_sheet() -> String {
    let rules = |dark_mode: bool| -> String {
        let rule = |(name, light, dark): &(&str, &str, &str)| {
            let colour = if dark_mode { dark } else { light };
            format!(".picture .f-{name}{{fill:{colour}}}.picture .l-{name}{{stroke:{colour}}}")
        };
        ROLES.iter().map(rule).collect()
    };
    format!(
        ".picture text{{font:12px system-ui,'Segoe UI',Roboto,'DejaVu Sans',sans-serif}}\
         .picture .t-title{{font-size:14px;font-weight:600}}\
         .picture .t-small{{font-size:11px}}\
         .picture path{{fill:none;stroke-linejoin:round}}\
         {}@media screen and (prefers-color-scheme:dark){{{}}}",
        rules(false),
        rules(true)
    )
}

/// Name of the i-th series' colour.
pub fn colour(i: usize) -> &'static str {
    ROLES[ROLES.len() - SERIES + i % SERIES].0
}

/// Colour name and dashes of the i-th series, unique for 32 series.
pub fn series(i: usize) -> (&'static str, &'static str) {
    const DASHES: [&str; 4] = ["", "7 3", "2 3", "8 3 2 3"];
    (colour(i), DASHES[i / SERIES % DASHES.len()])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Relative luminance (WCAG 2) of `#rrggbb`.
    fn luminance(hex: &str) -> f64 {
        let channel = |at: usize| {
            let c = f64::from(u8::from_str_radix(&hex[at..at + 2], 16).unwrap()) / 255.0;
            if c <= 0.04045 { c / 12.92 } else { ((c + 0.055) / 1.055).powf(2.4) }
        };
        0.2126 * channel(1) + 0.7152 * channel(3) + 0.0722 * channel(5)
    }

    fn contrast(a: &str, b: &str) -> f64 {
        let (a, b) = (luminance(a) + 0.05, luminance(b) + 0.05);
        a.max(b) / a.min(b)
    }

    #[test]
    fn everything_can_be_seen_on_its_background() {
        let paper = ROLES[0];
        for (name, light, dark) in ROLES {
            let min = match name {
                "paper" | "grid" => continue,
                "ink" | "dim" => 4.5,
                _ => 3.0,
            };
            assert!(contrast(light, paper.1) >= min, "{name} light: {}", contrast(light, paper.1));
            assert!(contrast(dark, paper.2) >= min, "{name} dark: {}", contrast(dark, paper.2));
        }
    }

    #[test]
    fn thirty_two_series_differ() {
        let all: std::collections::BTreeSet<_> = (0..32).map(series).collect();
        assert_eq!(all.len(), 32);
    }
}
