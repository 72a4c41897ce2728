//! A template's source as tokens, with the whitespace control of `trim_blocks` and `lstrip_blocks`.

use std::sync::Arc;

use super::text::is_space;

/// A token and the line on which it begins.
#[derive(Clone, Debug)]
pub(crate) struct Token {
    pub kind: TokenKind,
    pub line: usize,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum TokenKind {
    /// Text between tags, never empty.
    Text(Arc<str>),
    OpenOutput,
    CloseOutput,
    OpenBlock,
    CloseBlock,
    Name(Arc<str>),
    Str(Arc<str>),
    Int(i128),
    Float(f64),
    Operator(&'static str),
    End,
}

/// Longer ones first.
const OPERATORS: [&str; 27] = [
    "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", ">", "<", "=", ".", ":", "|", ",", ";", "(", ")",
    "[", "]", "{", "}", "!",
];

/// What is wrong, and on which line.
#[derive(Debug)]
pub(crate) struct SyntaxError {
    pub message: String,
    pub line: usize,
}

/// The tokens of `source`, the last of which is [`TokenKind::End`].
///
/// # Errors
/// A tag, comment or string that is not closed; a character that no token begins with.
pub(crate) fn tokens(source: &str) -> Result<Vec<Token>, SyntaxError> {
    let mut source = source.replace("\r\n", "\n").replace('\r', "\n");
    if source.ends_with('\n') {
        source.pop();
    }
    let mut lexer = Lexer { source: &source, at: 0, line: 1, line_starts: true, tokens: Vec::new() };
    lexer.run()?;
    lexer.push(TokenKind::End);
    Ok(lexer.tokens)
}

struct Lexer<'s> {
    source: &'s str,
    at: usize,
    line: usize,
    /// The tag before ended a line.
    line_starts: bool,
    tokens: Vec<Token>,
}

impl<'s> Lexer<'s> {
    fn rest(&self) -> &'s str {
        &self.source[self.at..]
    }

    fn push(&mut self, kind: TokenKind) {
        self.tokens.push(Token { kind, line: self.line });
    }

    fn error<T>(&self, message: impl Into<String>) -> Result<T, SyntaxError> {
        Err(SyntaxError { message: message.into(), line: self.line })
    }

    /// Goes on by `n` bytes.
    fn skip(&mut self, n: usize) {
        let passed = &self.source[self.at..self.at + n];
        self.line += passed.matches('\n').count();
        if !passed.is_empty() {
            self.line_starts = passed.ends_with('\n');
        }
        self.at += n;
    }

    fn skip_spaces(&mut self) {
        let rest = self.rest();
        self.skip(rest.len() - rest.trim_start_matches(is_space).len());
    }

    fn run(&mut self) -> Result<(), SyntaxError> {
        while !self.rest().is_empty() {
            let Some((start, tag)) = next_tag(self.rest()) else {
                let rest = self.rest();
                self.text(rest);
                self.skip(rest.len());
                break;
            };
            let mark = self.rest()[start + 2..].chars().next();
            let text = self.before_tag(&self.rest()[..start], tag, mark);
            self.text(text);
            self.skip(start);
            self.skip(if matches!(mark, Some('-' | '+')) { 3 } else { 2 });
            match tag {
                '#' => self.comment()?,
                '%' if self.is_raw() => self.raw()?,
                '%' => self.tag(TokenKind::OpenBlock, TokenKind::CloseBlock, "%}")?,
                _ => self.tag(TokenKind::OpenOutput, TokenKind::CloseOutput, "}}")?,
            }
        }
        Ok(())
    }

    fn text(&mut self, text: &str) {
        if !text.is_empty() {
            self.push(TokenKind::Text(text.into()));
        }
    }

    /// The text before a tag without what the tag takes from it.
    fn before_tag<'t>(&self, text: &'t str, tag: char, mark: Option<char>) -> &'t str {
        match mark {
            Some('-') => text.trim_end_matches(is_space),
            Some('+') => text,
            _ if tag == '{' => text,
            _ => {
                let last_line = text.rfind('\n').map_or(0, |i| i + 1);
                let indented = text[last_line..].chars().all(is_space);
                if (last_line > 0 || self.line_starts) && indented { &text[..last_line] } else { text }
            }
        }
    }

    /// The end of a block or comment, which takes the line break after it; `-` takes all whitespace.
    fn close(&mut self, mark: Option<char>, n: usize) {
        self.skip(n);
        match mark {
            Some('-') => self.skip_spaces(),
            Some('+') => {}
            _ if self.rest().starts_with('\n') => self.skip(1),
            _ => {}
        }
    }

    fn comment(&mut self) -> Result<(), SyntaxError> {
        let Some(end) = self.rest().find("#}") else { return self.error("a comment is not closed") };
        let mark = self.rest()[..end].chars().next_back().filter(|c| matches!(c, '-' | '+'));
        self.close(mark, end + 2);
        Ok(())
    }

    fn is_raw(&self) -> bool {
        let rest = self.rest().trim_start_matches(is_space);
        rest.strip_prefix("raw").is_some_and(|rest| {
            let rest = rest.trim_start_matches(is_space);
            rest.starts_with("%}") || rest.starts_with("-%}")
        })
    }

    /// `{% raw %}` up to its end, as text.
    fn raw(&mut self) -> Result<(), SyntaxError> {
        let Some(end) = self.rest().find("%}") else { return self.error("a tag is not closed") };
        let strips = self.rest()[..end].ends_with('-');
        self.skip(end + 2);
        if strips {
            self.skip_spaces();
        }
        let text = self.rest();
        let mut from = 0;
        while let Some(start) = text[from..].find("{%").map(|i| from + i) {
            let inside = &text[start + 2..];
            let mark = inside.chars().next().filter(|c| matches!(c, '-' | '+'));
            let name = inside[mark.map_or(0, char::len_utf8)..].trim_start_matches(is_space);
            if let Some(after) = name.strip_prefix("endraw") {
                let after = after.trim_start_matches(is_space);
                let end_mark = after.chars().next().filter(|c| matches!(c, '-' | '+'));
                let after = &after[end_mark.map_or(0, char::len_utf8)..];
                if after.starts_with("%}") {
                    self.text(self.before_tag(&text[..start], '%', mark));
                    self.close(end_mark, text.len() - after.len() + 2);
                    return Ok(());
                }
            }
            from = start + 2;
        }
        self.error("{% raw %} is not closed")
    }

    /// The inside of a tag and its end. Braces inside are balanced first, so that `}}` may end two dicts.
    fn tag(&mut self, open: TokenKind, close: TokenKind, end: &str) -> Result<(), SyntaxError> {
        self.push(open);
        let mut brackets: Vec<&str> = Vec::new();
        loop {
            self.skip_spaces();
            let rest = self.rest();
            if brackets.is_empty() {
                let mark = rest.chars().next().filter(|c| matches!(c, '-' | '+'));
                let marked = mark.filter(|_| rest[1..].starts_with(end));
                // `+}}` is no end: the plus is an operator
                if rest.starts_with(end) || (marked.is_some() && (marked == Some('-') || end == "%}")) {
                    self.push(close);
                    let n = end.len() + marked.map_or(0, char::len_utf8);
                    if end == "}}" && marked.is_none() {
                        self.skip(n);
                    } else {
                        self.close(marked, n);
                    }
                    return Ok(());
                }
            }
            let Some(first) = rest.chars().next() else { return self.error("a tag is not closed") };
            if first.is_alphabetic() || first == '_' {
                let n = rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(rest.len());
                self.push(TokenKind::Name(rest[..n].into()));
                self.skip(n);
            } else if first.is_ascii_digit() {
                self.number()?;
            } else if matches!(first, '\'' | '"') {
                self.string(first)?;
            } else {
                let Some(operator) = OPERATORS.into_iter().find(|operator| rest.starts_with(operator)) else {
                    return self.error(format!("unexpected character {first:?}"));
                };
                match operator {
                    "(" => brackets.push(")"),
                    "[" => brackets.push("]"),
                    "{" => brackets.push("}"),
                    ")" | "]" | "}" if brackets.pop() != Some(operator) => {
                        return self.error(format!("unexpected {operator:?}"));
                    }
                    _ => {}
                }
                self.push(TokenKind::Operator(operator));
                self.skip(operator.len());
            }
        }
    }

    fn number(&mut self) -> Result<(), SyntaxError> {
        let rest = self.rest();
        let radix = match rest.as_bytes() {
            [b'0', b'x' | b'X', ..] => 16,
            [b'0', b'o' | b'O', ..] => 8,
            [b'0', b'b' | b'B', ..] => 2,
            _ => 10,
        };
        let digits =
            |text: &str, radix: u32| text.find(|c: char| !(c.is_digit(radix) || c == '_')).unwrap_or(text.len());
        if radix != 10 {
            let n = 2 + digits(&rest[2..], radix);
            let value = i128::from_str_radix(&rest[2..n].replace('_', ""), radix);
            let Ok(value) = value else { return self.error(format!("not a number: {}", &rest[..n])) };
            self.push(TokenKind::Int(value));
            self.skip(n);
            return Ok(());
        }
        let mut n = digits(rest, 10);
        let whole = n;
        if rest[n..].starts_with('.') && rest[n + 1..].starts_with(|c: char| c.is_ascii_digit()) {
            n += 1 + digits(&rest[n + 1..], 10);
        }
        let exponent = rest[n..].strip_prefix(['e', 'E']).map(|e| (e, e.strip_prefix(['+', '-']).unwrap_or(e)));
        if let Some((signed, unsigned)) = exponent.filter(|(_, e)| e.starts_with(|c: char| c.is_ascii_digit())) {
            n += 1 + (signed.len() - unsigned.len()) + digits(unsigned, 10);
        }
        let text = rest[..n].replace('_', "");
        let kind =
            if n == whole { text.parse().ok().map(TokenKind::Int) } else { text.parse().ok().map(TokenKind::Float) };
        let Some(kind) = kind else { return self.error("a number is too large") };
        self.push(kind);
        self.skip(n);
        Ok(())
    }

    fn string(&mut self, quote: char) -> Result<(), SyntaxError> {
        let rest = &self.rest()[1..];
        let mut out = String::new();
        let mut chars = rest.char_indices();
        while let Some((i, c)) = chars.next() {
            if c == quote {
                self.push(TokenKind::Str(out.into()));
                self.skip(i + 2);
                return Ok(());
            }
            if c != '\\' {
                out.push(c);
                continue;
            }
            let Some((_, escape)) = chars.next() else { break };
            let mut code = |out: &mut String, first: &str, max: usize, radix: u32| {
                let mut digits = first.to_string();
                while digits.len() < max
                    && let Some(digit) = chars.clone().next().map(|(_, c)| c).filter(|c| c.is_digit(radix))
                {
                    digits.push(digit);
                    chars.next();
                }
                let c = u32::from_str_radix(&digits, radix).ok().and_then(char::from_u32);
                out.push(c.unwrap_or(char::REPLACEMENT_CHARACTER));
            };
            match escape {
                '\n' => {}
                '\\' | '\'' | '"' => out.push(escape),
                'n' => out.push('\n'),
                't' => out.push('\t'),
                'r' => out.push('\r'),
                'a' => out.push('\u{7}'),
                'b' => out.push('\u{8}'),
                'f' => out.push('\u{c}'),
                'v' => out.push('\u{b}'),
                'x' => code(&mut out, "", 2, 16),
                'u' => code(&mut out, "", 4, 16),
                'U' => code(&mut out, "", 8, 16),
                '0'..='7' => code(&mut out, escape.encode_utf8(&mut [0; 4]), 3, 8),
                other => out.extend(['\\', other]),
            }
        }
        self.error("a string is not closed")
    }
}

/// Where the next tag begins, and the second character of what opens it.
fn next_tag(text: &str) -> Option<(usize, char)> {
    let mut from = 0;
    loop {
        let at = from + text[from..].find('{')?;
        match text[at + 1..].chars().next() {
            Some(c @ ('{' | '%' | '#')) => return Some((at, c)),
            _ => from = at + 1,
        }
    }
}
