//! One spelling for characters that Unicode writes in several ways.

use std::borrow::Cow;
use unicode_normalization_alignments::UnicodeNormalization;

/// A text in normalization form C, with ASCII forms of full-width letters, digits, brackets and signs, and of apostrophes; and
/// for each byte of it, and its end, the byte of `text` it stands for.
pub(super) fn folded(text: &str) -> (String, Vec<usize>) {
    let mut plain = String::with_capacity(text.len());
    let mut offsets = Vec::with_capacity(text.len() + 1);
    let mut starts = text.char_indices().map(|(at, _)| at);
    let mut at = 0;
    for (c, change) in text.nfc() {
        // a new character belongs to the one before; one that absorbs its marks is followed by theirs
        if change <= 0 {
            at = starts.next().unwrap_or(text.len());
            starts.by_ref().take(change.unsigned_abs()).for_each(drop);
        }
        let c = ascii(c);
        offsets.extend(std::iter::repeat_n(at, c.len_utf8()));
        plain.push(c);
    }
    offsets.push(text.len());
    (plain, offsets)
}

/// A text as graders compare it: [`folded`], with the digits of other scripts as ASCII digits.
pub(crate) fn comparable(text: &str) -> Cow<'_, str> {
    if text.is_ascii() { text.into() } else { text.nfc().map(|(c, _)| ascii_digit(ascii(c))).collect() }
}

/// The value of a decimal digit in the common scripts.
pub fn digit(c: char) -> Option<u32> {
    const ZEROS: [u32; 7] = [0x30, 0x660, 0x6f0, 0x966, 0x9e6, 0xe50, 0xff10];
    ZEROS.iter().filter_map(|zero| u32::from(c).checked_sub(*zero)).find(|digit| *digit < 10)
}

/// A digit of another script as an ASCII digit.
pub(crate) fn ascii_digit(c: char) -> char {
    digit(c).and_then(|digit| char::from_digit(digit, 10)).unwrap_or(c)
}

/// The ASCII form of a full-width character or an apostrophe. A full-width comma is none: it separates, and groups no digits.
fn ascii(c: char) -> char {
    match c {
        '，' => c,
        '！'..='～' => char::from_u32(u32::from(c) - 0xfee0).unwrap_or(c),
        '٫' => '.',
        '٬' => ',',
        '【' => '[',
        '】' => ']',
        '‘' | '’' => '\'',
        _ => c,
    }
}
