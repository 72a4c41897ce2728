//! LaTeX with presentation-only markup removed: one spelling for everything the parsers look at.

use super::super::comparable;
use super::spoken::signed;
use super::text::{digits, group, letters, nesting, take_char};
use super::vocabulary::{FUNCTIONS, PERCENT, Words};
use regex::Captures;

/// A cleaned answer.
pub(crate) struct Clean {
    /// The first column of [`SPELLINGS`] for every other spelling, `\text{…}` for all words, single spaces; without percent
    /// signs, sizes and fonts. A thousands separator is a comma or nothing; a dollar sign is money.
    pub text: String,
    /// The answer contains a percent sign or the word.
    pub percent: bool,
}

/// Max bytes of an answer to be parsed as a formula.
const MAX_LENGTH: usize = 2000;

/// Normal forms, and the spellings rewritten to them. A command must match as a whole.
const SPELLINGS: &[(&str, &str)] = &[
    ("°", r"^{\circ} ^\circ ^\degree ^{\degree} ^{\text{o}} ^\text{o} ^{o} º ˚ \degree"),
    ("≤", r"<= ⩽ ≦ \le \leq \leqslant"),
    ("≥", r">= ⩾ ≧ \ge \geq \geqslant"),
    ("≠", r"\not= \ne \neq"),
    ("≈", r"\approx \simeq \doteq"),
    ("≡", r"\equiv"),
    ("<", r"\lt"),
    (">", r"\gt"),
    ("", r#"** ` " “ ” \( \) \[ \] # \# % \%"#),
    ("$", r"\$"),
    ("£", r"\pounds \textsterling"),
    ("€", r"\euro \texteuro"),
    ("", r"\displaystyle \textstyle \rm \bf \it \mathbf \boldsymbol \bm \mathcal \mathsf"),
    ("", r"\limits \nolimits \boxed \fbox \mathbb \Bbb"),
    ("", r"\left. \right. \left \right \middle \big \Big \bigg \Bigg"),
    ("", r"\bigl \bigr \Bigl \Bigr \biggl \biggr \Biggl \Biggr"),
    ("*", r"× · ⋅ ∗ \cdot \times \ast"),
    ("/", r"÷ \div"),
    (",", "，"),
    ("-", "− – — ― ‐ ‑ ﹣"),
    ("±", r"\pm"),
    ("∓", r"\mp"),
    ("∪", r"\cup"),
    ("∩", r"\cap"),
    ("∖", r"\setminus"),
    ("∈", r"\in"),
    ("∞", r"\infty"),
    ("π", r"\pi"),
    ("ℝ", r"\R"),
    ("∅", r"\emptyset \varnothing"),
    ("\\{", r"\lbrace"),
    ("\\}", r"\rbrace"),
    ("[", r"\lbrack"),
    ("]", r"\rbrack"),
    ("⟨", r"\langle"),
    ("⟩", r"\rangle"),
    ("⌊", r"\lfloor"),
    ("⌋", r"\rfloor"),
    ("⌈", r"\lceil"),
    ("⌉", r"\rceil"),
    ("|", r"\| \mid \vert \lvert \rvert"),
    (":", r"\colon"),
    ("'", r"’ ′ \prime"),
    ("…", r"\ldots \dots \cdots"),
    ("&", r"\&"),
    ("\\sqrt ", "√"),
    ("\\frac ", r"\dfrac \tfrac \cfrac"),
    (" or ", r"∨ \lor \vee"),
    (" and ", r"∧ \land \wedge"),
    (" mod ", r"\pmod \bmod \mod"),
    (" ", r"~ \space \enspace \thinspace"),
];

/// Thousands separators, and their meaning elsewhere.
const THOUSANDS: [(&str, &str); 9] = [
    ("{,}", ","),
    ("\\,", " "),
    ("\u{202f}", " "),
    ("\u{2009}", " "),
    ("\u{a0}", " "),
    ("'", "'"),
    ("’", "'"),
    ("_", "_"),
    ("٬", ","),
];

/// Fractions of one character, and their numerators and denominators.
const VULGAR: &str = "½12 ⅓13 ⅔23 ¼14 ¾34 ⅕15 ⅖25 ⅗35 ⅘45 ⅙16 ⅚56 ⅐17 ⅛18 ⅜38 ⅝58 ⅞78 ⅑19";

/// Commands whose argument is words.
const FONTS: Words =
    Words("text textrm textnormal textbf textit textsf texttt textup mathrm mathit mbox hbox operatorname");

/// `None` for a text too long to be an answer.
pub(crate) fn clean(source: &str) -> Option<Clean> {
    if source.len() > MAX_LENGTH {
        return None;
    }
    let source = &*comparable(source);
    // Outside a matrix, a double backslash is an escaped single one.
    let single = if source.contains("\\begin") { source.to_owned() } else { source.replace("\\\\", "\\") };
    let single =
        single.replace("^{ \\circ }", "°").replace("\\not =", "≠").replace("\\qquad", " ").replace("\\quad", " ");
    let single = pattern!(r"\}\s*(\\boxed|\\fbox)\b").replace_all(&single, "}, $1");
    let single = pattern!(r"\b(?:US|HK|NZ|[ACRS])(\\?\$)").replace_all(&single, "$1");
    let single = pattern!(r"\\(?:text)?color\{[a-z]+\}").replace_all(&single, "");
    let single = pattern!(r"(^|[^0-9)\\])!=").replace_all(&single, "$1≠"); // `5!=120` is the value of a factorial
    let set = |found: &Captures| translated(&found[1], "RZNQC", "ℝℤℕℚℂ");
    let dollars = pattern!(r"\\.|\$").find_iter(&single).filter(|found| found.as_str() == "$").count();
    let unpaired = dollars % 2 == 1; // money; a pair delimits a formula
    let single =
        if unpaired { single.into_owned() } else { pattern!(r"(\\.)|\$").replace_all(&single, "$1").into_owned() };
    let single = pattern!(r"\\(?:mathbb|Bbb)(?:\s*\{\s*|\s+)([RZNQC])(?:\s*\})?").replace_all(&single, set);
    let mut cleaner = Cleaner { rest: &single, text: String::new() };
    while cleaner.step().is_some() {}
    let words: Vec<&str> = cleaner.text.split_whitespace().collect();
    let text = without_groups(&words.join(" ")).replace(")or(", ") or (").replace(")and(", ") and (");
    let text = pattern!(r"([0-9)}]) ?[xX] ?(10 ?\^)").replace_all(&text, "$1*$2");
    let text = signed(&text);
    let text = pattern!(r"\\frac ?\{\\text\{([^{}]*)\}\} ?\{\\text\{([^{}]*)\}\}").replace_all(&text, r"\text{$1/$2}");
    let scale = |found: &Captures| {
        let word = match &found[2].to_lowercase()[..] {
            "k" => "thousand",
            "m" => "million",
            "b" => "billion",
            _ => "trillion",
        };
        format!("{} {word}", &found[1])
    };
    let text = pattern!(r"([$€£¥₹] ?[0-9][0-9.,]*) ?([KkMmBbTt])\b").replace_all(&text, scale);
    let in_words =
        text.contains("per cent") || text.split(|c: char| !c.is_alphabetic()).any(|word| PERCENT.contains(word));
    let text = text.trim_end_matches(['.', ',', ';', ':', ' ']).trim_start_matches([',', ';', ':', ' ']);
    Some(Clean { text: text.to_owned(), percent: in_words || source.contains('%') })
}

/// The known characters of a text, replaced; others are dropped.
fn translated(text: &str, from: &str, to: &str) -> String {
    let other = |c| from.chars().zip(to.chars()).find(|(known, _)| *known == c).map(|(_, other)| other);
    text.chars().filter_map(other).collect()
}

/// Joins groups of three digits that cannot be separate numbers: `1 000`, `12 345 678`, `1.234.567`, not `100 200 300`; two groups
/// that are the only digits, as `12 345`.
fn without_groups(text: &str) -> String {
    let joined = |found: &Captures| {
        let groups: Vec<&str> = found[2].split([' ', '.']).collect();
        let begins_with_0 = groups[1..].iter().any(|group| group.starts_with('0'));
        let alone = || groups.len() == 2 && pattern!(r"^[^0-9]*[0-9]+ [0-9]+(?:\.[0-9]+)?[^0-9]*$").is_match(text);
        let one = found[2].contains('.') || begins_with_0 || (groups.len() > 2 && groups[0].len() < 3) || alone();
        [&found[1], &if one { groups.concat() } else { found[2].to_owned() }, &found[3]].concat()
    };
    let groups = pattern!(r"(^|[^0-9.,])([0-9]{1,3}(?:(?: [0-9]{3})+|(?:\.[0-9]{3}){2,}))([^0-9/]|$)");
    groups.replace_all(text, joined).into_owned()
}

/// Removes commas before groups of three digits, except in brackets, where a comma separates.
pub(crate) fn without_thousands(text: &str) -> String {
    let plain = |found: &Captures| {
        let before = &text[..found.get(0).map_or(0, |number| number.start())];
        let outside = || before.chars().map(nesting).sum::<i32>() == 0 && !before.ends_with('.');
        // `1,234`, `12,345,678` and `1,23,456`, not `1234,567`, `0,123` or `1,23`
        let separated = pattern!(r"^[1-9](?:[0-9]{0,2}(?:,[0-9]{3})+|[0-9]?(?:,[0-9]{2})+,[0-9]{3})$");
        if separated.is_match(&found[0]) && outside() { found[0].replace(',', "") } else { found[0].to_owned() }
    };
    pattern!("[0-9,]*[0-9]").replace_all(text, plain).into_owned()
}

/// Replacement for the spelling at the start of a text, and the text after it.
fn replacement(text: &str) -> Option<(&'static str, &str)> {
    if text.starts_with(|c: char| c.is_ascii_alphanumeric() || c == ' ') {
        return None;
    }
    let letter = |c: char| c.is_ascii_alphabetic();
    let after = |spelling: &str| {
        let is_command = spelling.starts_with('\\') && spelling.ends_with(letter);
        text.strip_prefix(spelling).filter(|rest| !(is_command && rest.starts_with(letter)))
    };
    SPELLINGS.iter().find_map(|(to, from)| Some((*to, from.split_whitespace().find_map(after)?)))
}

struct Cleaner<'a> {
    rest: &'a str,
    text: String,
}

impl Cleaner<'_> {
    /// Reads one character or command; `None` at the end.
    fn step(&mut self) -> Option<()> {
        let separator = |(spelling, otherwise): &(&str, _)| Some((self.rest.strip_prefix(spelling)?, *otherwise));
        if let Some((rest, otherwise)) = THOUSANDS.iter().find_map(separator) {
            self.rest = rest;
            if !(self.text.ends_with(|c: char| c.is_ascii_digit()) && digits(rest) == 3) {
                self.text.push_str(otherwise);
            }
            return Some(());
        }
        if let Some((text, rest)) = replacement(self.rest) {
            self.rest = rest;
            self.text.push_str(text);
            return Some(());
        }
        if let Some(raised) = pattern!("^[⁰¹²³⁴-⁹⁻⁺]+").find(self.rest) {
            let exponent = translated(raised.as_str(), "⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-");
            self.text.push_str(&format!("^{{{exponent}}}"));
            self.rest = &self.rest[raised.end()..];
            return Some(());
        }
        match take_char(&mut self.rest)? {
            '\\' => self.command(),
            c => match VULGAR.split(' ').find_map(|known| known.strip_prefix(c)?.split_at_checked(1)) {
                Some((above, below)) => self.text.push_str(&format!("\\frac{{{above}}}{{{below}}}")),
                None => self.text.push(c),
            },
        }
        Some(())
    }

    /// What follows a backslash: a command, or a non-letter.
    fn command(&mut self) {
        let name = letters(self.rest);
        self.rest = &self.rest[name.len()..];
        match name {
            "" => match take_char(&mut self.rest) {
                None => {}
                Some(c @ ('\\' | '{' | '}')) => self.text.extend(['\\', c]),
                Some('!') if self.text.ends_with(',') => self.rest = self.rest.trim_start(),
                Some('!') => {}
                Some(_) => self.text.push(' '),
            },
            _ if FONTS.contains(name) => self.words(),
            _ => self.text.push_str(&format!("\\{name} ")),
        }
    }

    /// The argument of a command for words.
    fn words(&mut self) {
        let argument = self.rest.trim_start();
        let Some(open) = argument.strip_prefix('{') else { return };
        let (inside, rest) = group(argument).unwrap_or((open, ""));
        self.rest = rest;
        let words = inside.replace(['{', '}', '$', '\\', '~'], " ");
        let words = words.trim();
        match words {
            _ if FUNCTIONS.contains(words) => self.text.push_str(&format!("\\{words} ")),
            "mod" => self.text.push_str(" mod "),
            "i" | "e" => self.text.push_str(&format!(" {words} ")), // constants in any font
            _ if pattern!(r"^(?:[-−–$]*[0-9][0-9.,/]*|[-−–+])$").is_match(words) => {
                self.text.push_str(&words.replace(['−', '–'], "-"));
            }
            _ => self.text.push_str(&format!("\\text{{{words}}}")),
        }
    }
}
