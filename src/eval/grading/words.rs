//! Answers in words.

/// Words in lower case with single spaces, without the quotes, punctuation and formatting around them; brackets alone
/// (as the closing ones of BIG-Bench Hard's `dyck_languages`) without spaces.
pub(super) fn normal_form(answer: &str) -> String {
    let mut text = answer.trim().to_owned();
    for command in ["\\text", "\\textbf", "\\textit", "\\mathrm", "\\mathbf", "\\boxed"] {
        text = text.replace(&format!("{command}{{"), "{");
    }
    if let Some(brackets) = brackets(&text) {
        return brackets;
    }
    let text = text.replace(['{', '}', '$', '*', '`', '"', '“', '”', '\\', '~'], " ").replace(['’', '‘'], "'");
    let words = text.split([' ', '\t', '\n', '\r', ',', ';', '\u{a0}']).map(|word| word.trim_matches(loose));
    let words: Vec<String> = words.filter(|word| !word.is_empty()).map(str::to_lowercase).collect();
    words.join(" ")
}

/// What belongs to no word at its ends.
fn loose(c: char) -> bool {
    matches!(c, '.' | '!' | '?' | ':' | '\'' | '(' | ')' | '[' | ']')
}

/// An answer of nothing but brackets.
fn brackets(text: &str) -> Option<String> {
    let plain = text.replace("\\langle", "<").replace("\\rangle", ">").replace(['$', '\\', ',', '"', '`'], "");
    let plain: String = plain.split_whitespace().collect();
    let found = !plain.is_empty() && plain.chars().all(|c| "()[]{}<>".contains(c));
    found.then_some(plain)
}
