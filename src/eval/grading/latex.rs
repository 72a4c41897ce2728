//! LaTeX without what only changes its looks: one spelling for everything that the readers after it look at.

use super::functions::FUNCTIONS;

/// A cleaned answer.
pub(super) struct Clean {
    /// With `≤ ≥ ≠ ≈ ≡ * ± ∓ ∪ ∩ ∖ ∈ ∞ π ∅ ℝ ⟨ ⟩ ⌊ ⌋ ⌈ ⌉ ° …` for their commands, `\text{…}` for all words, single spaces;
    /// without dollar and percent signs, sizes, fonts, separators of thousands that are more than a comma.
    pub text: String,
    /// A percent sign or the word was there.
    pub percent: bool,
}

/// Longer answers are not read as formulas.
const MAX_LENGTH: usize = 2000;

/// Words for the percent sign.
const PERCENT: [&str; 3] = ["percent", "pct", "percentage"];

/// `None` for what is too long to be an answer.
pub(super) fn clean(source: &str) -> Option<Clean> {
    if source.len() > MAX_LENGTH {
        return None;
    }
    // Outside of a matrix two backslashes are one that was escaped.
    let single = if source.contains("\\begin") { source.to_owned() } else { source.replace("\\\\", "\\") };
    let mut cleaner = Cleaner { rest: &single, text: String::new(), percent: false };
    while cleaner.step() {}
    let words: Vec<&str> = cleaner.text.split_whitespace().collect();
    let text = without_spaces_in_numbers(&words.join(" ")).replace(")or(", ") or (").replace(")and(", ") and (");
    let percent = text.split(|c: char| !c.is_alphabetic()).any(|word| PERCENT.contains(&word));
    let text = text.trim_end_matches(['.', ',', ';', ':', ' ']).trim_start_matches([',', ';', ':', ' ']);
    Some(Clean { text: text.to_owned(), percent: cleaner.percent || percent })
}

/// Without the spaces between groups of three digits where these cannot be numbers of their own: `1 000`, `12 345 678`,
/// not `100 200 300`.
fn without_spaces_in_numbers(text: &str) -> String {
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    let (mut joined, mut rest) = (String::new(), text);
    while let Some(c) = rest.chars().next() {
        let first = digits(rest);
        let mut end = first;
        let mut groups = Vec::new();
        while first > 0 && rest[end..].starts_with(' ') && digits(&rest[end + 1..]) == 3 {
            groups.push(&rest[end + 1..end + 4]);
            end += 4;
        }
        let whole = first <= 3 && !joined.ends_with(['.', ',']) && !rest[end..].starts_with('/');
        let separated = groups.iter().any(|group| group.starts_with('0')) || (groups.len() > 1 && first < 3);
        if whole && separated {
            joined.push_str(&rest[..first]);
            joined.extend(groups);
        } else {
            end = first.max(c.len_utf8());
            joined.push_str(&rest[..end]);
        }
        rest = &rest[end..];
    }
    joined
}

struct Cleaner<'a> {
    rest: &'a str,
    text: String,
    percent: bool,
}

impl<'a> Cleaner<'a> {
    /// Reads one character or command; false at the end.
    fn step(&mut self) -> bool {
        const DEGREES: [&str; 8] =
            ["^{\\circ}", "^\\circ", "^{ \\circ }", "^\\degree", "^{\\degree}", "^{\\text{o}}", "^\\text{o}", "^{o}"];
        const RELATIONS: [(&str, &str); 4] = [("<=", "≤"), (">=", "≥"), ("\\not=", "≠"), ("\\not =", "≠")];
        if let Some(sign) = DEGREES.iter().find(|sign| self.rest.starts_with(**sign)) {
            self.rest = &self.rest[sign.len()..];
            self.text.push('°');
            return true;
        }
        if let Some((sign, character)) = RELATIONS.iter().find(|(sign, _)| self.rest.starts_with(sign)) {
            self.rest = &self.rest[sign.len()..];
            self.text.push_str(character);
            return true;
        }
        // But `5!=120` is a factorial's value.
        if self.rest.starts_with("!=") && !self.text.ends_with(|c: char| c.is_ascii_digit() || c == ')') {
            self.rest = &self.rest[2..];
            self.text.push('≠');
            return true;
        }
        if let Some(rest) = self.rest.strip_prefix("{,}") {
            self.rest = rest;
            self.thousands(",");
            return true;
        }
        if let Some(rest) = self.rest.strip_prefix("**") {
            self.rest = rest; // bold in Markdown
            return true;
        }
        let Some(c) = self.rest.chars().next() else { return false };
        self.rest = &self.rest[c.len_utf8()..];
        match c {
            '\\' => self.command(),
            '%' | '％' => self.percent = true,
            '$' | '£' | '€' | '¥' | '`' | '"' | '“' | '”' => {}
            '°' | 'º' | '˚' => self.text.push('°'),
            '⩽' | '≦' => self.text.push('≤'),
            '⩾' | '≧' => self.text.push('≥'),
            '∨' => self.text.push_str(" or "),
            '∧' => self.text.push_str(" and "),
            '−' | '–' => self.text.push('-'),
            '×' | '·' | '⋅' | '∗' => self.text.push('*'),
            '÷' => self.text.push('/'),
            '√' => self.text.push_str("\\sqrt "),
            _ if superscript(c).is_some() => self.superscripts(c),
            '½' => self.text.push_str("\\frac{1}{2}"),
            '¼' => self.text.push_str("\\frac{1}{4}"),
            '¾' => self.text.push_str("\\frac{3}{4}"),
            '，' => self.text.push(','),
            '’' | '′' => self.text.push('\''),
            '\u{202f}' | '\u{2009}' | '\u{a0}' => self.thousands(" "),
            '~' => self.text.push(' '),
            _ => self.text.push(c),
        }
        true
    }

    /// A separator of thousands, if digits stand before it and three after it; else what it looks like.
    fn thousands(&mut self, otherwise: &str) {
        let digits = self.rest.bytes().take_while(u8::is_ascii_digit).count();
        if !(self.text.ends_with(|c: char| c.is_ascii_digit()) && digits == 3) {
            self.text.push_str(otherwise);
        }
    }

    /// Small raised digits, which start with `first`.
    fn superscripts(&mut self, first: char) {
        let length: usize = self.rest.chars().take_while(|c| superscript(*c).is_some()).map(char::len_utf8).sum();
        let (raised, rest) = self.rest.split_at(length);
        self.rest = rest;
        let exponent: String = std::iter::once(first).chain(raised.chars()).filter_map(superscript).collect();
        self.text.push_str(&format!("^{{{exponent}}}"));
    }

    /// What comes after a backslash.
    fn command(&mut self) {
        let length = self.rest.bytes().take_while(u8::is_ascii_alphabetic).count();
        if length == 0 {
            return self.control_symbol();
        }
        let (name, rest) = self.rest.split_at(length);
        self.rest = rest;
        match name {
            "left" | "right" | "big" | "Big" | "bigg" | "Bigg" | "bigl" | "bigr" | "Bigl" | "Bigr" | "biggl"
            | "biggr" | "Biggl" | "Biggr" | "middle" => self.rest = rest.strip_prefix('.').unwrap_or(rest),
            "displaystyle" | "textstyle" | "rm" | "bf" | "it" | "limits" | "nolimits" | "mathbf" | "boldsymbol"
            | "bm" | "mathcal" | "mathsf" | "boxed" | "fbox" => {}
            "mathbb" | "Bbb" => self.number_set(),
            "text" | "textrm" | "textnormal" | "textbf" | "textit" | "textsf" | "texttt" | "textup" | "mathrm"
            | "mathit" | "mbox" | "hbox" | "operatorname" => self.words(),
            "pmod" | "bmod" | "mod" => self.text.push_str(" mod "),
            "lor" | "vee" => self.text.push_str(" or "),
            "land" | "wedge" => self.text.push_str(" and "),
            "quad" | "qquad" | "space" | "enspace" | "thinspace" => self.text.push(' '),
            "dfrac" | "tfrac" | "cfrac" => self.text.push_str("\\frac "),
            _ => match symbol(name) {
                Some(symbol) => self.text.push_str(symbol),
                None => {
                    self.text.push('\\');
                    self.text.push_str(name);
                    self.text.push(' ');
                }
            },
        }
    }

    /// A backslash before what is no letter.
    fn control_symbol(&mut self) {
        let Some(c) = self.rest.chars().next() else { return };
        self.rest = &self.rest[c.len_utf8()..];
        match c {
            '\\' => self.text.push_str("\\\\"),
            '{' => self.text.push_str("\\{"),
            '}' => self.text.push_str("\\}"),
            '|' => self.text.push('|'),
            ',' => self.thousands(" "),
            '!' if self.text.ends_with(',') => self.rest = self.rest.trim_start(),
            '!' | '$' | '(' | ')' | '[' | ']' | '#' => {}
            '%' => self.percent = true,
            '&' => self.text.push('&'),
            _ => self.text.push(' '),
        }
    }

    /// The argument of `\mathbb`: ℝ and the like.
    fn number_set(&mut self) {
        let inside = self.rest.trim_start();
        let letter = inside.strip_prefix('{').unwrap_or(inside).trim_start();
        let set = letter.chars().next().and_then(|c| "RZNQC".find(c)).and_then(|at| "ℝℤℕℚℂ".chars().nth(at));
        if let Some(set) = set {
            self.text.push(set);
            let rest = &letter[1..];
            self.rest =
                if inside.starts_with('{') { rest.trim_start().strip_prefix('}').unwrap_or(rest) } else { rest };
        }
    }

    /// The argument of a command for words.
    fn words(&mut self) {
        let Some(inside) = self.rest.trim_start().strip_prefix('{') else { return };
        let mut depth = 0_usize;
        let end = inside.find(|c| {
            depth = if c == '{' { depth + 1 } else { depth };
            let closes = c == '}' && depth == 0;
            depth = if c == '}' { depth.saturating_sub(1) } else { depth };
            closes
        });
        let end = end.unwrap_or(inside.len());
        let words = inside[..end].replace(['{', '}', '$', '\\', '~'], " ");
        let words = words.trim();
        match words {
            _ if FUNCTIONS.contains(&words) => self.text.push_str(&format!("\\{words} ")),
            "mod" => self.text.push_str(" mod "),
            "i" | "e" => self.text.push_str(&format!(" {words} ")), // numbers, whatever their font
            _ => self.text.push_str(&format!("\\text{{{words}}}")),
        }
        self.rest = inside.get(end + 1..).unwrap_or_default();
    }
}

/// The digit or sign that a raised one is.
fn superscript(c: char) -> Option<char> {
    "⁰¹²³⁴⁵⁶⁷⁸⁹⁻".chars().zip("0123456789-".chars()).find(|(raised, _)| *raised == c).map(|(_, plain)| plain)
}

/// A command's character.
fn symbol(name: &str) -> Option<&'static str> {
    Some(match name {
        "le" | "leq" | "leqslant" => "≤",
        "ge" | "geq" | "geqslant" => "≥",
        "ne" | "neq" => "≠",
        "approx" | "simeq" | "doteq" => "≈",
        "equiv" => "≡",
        "lt" => "<",
        "gt" => ">",
        "cdot" | "times" | "ast" => "*",
        "div" => "/",
        "pm" => "±",
        "mp" => "∓",
        "cup" => "∪",
        "cap" => "∩",
        "setminus" => "∖",
        "in" => "∈",
        "infty" => "∞",
        "pi" => "π",
        "degree" => "°",
        "R" => "ℝ",
        "emptyset" | "varnothing" => "∅",
        "lbrace" => "\\{",
        "rbrace" => "\\}",
        "lbrack" => "[",
        "rbrack" => "]",
        "langle" => "⟨",
        "rangle" => "⟩",
        "lfloor" => "⌊",
        "rfloor" => "⌋",
        "lceil" => "⌈",
        "rceil" => "⌉",
        "mid" | "vert" | "lvert" | "rvert" => "|",
        "colon" => ":",
        "prime" => "'",
        "ldots" | "dots" | "cdots" => "…",
        _ => return None,
    })
}
