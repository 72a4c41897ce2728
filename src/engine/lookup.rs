//! Guesses the next tokens from the text so far: those that followed the last occurrence of its final tokens (prompt
//! lookup decoding, Saxena 2023). The model decides whether a guess is correct; see [`super::speculate`].

use std::collections::HashMap;

/// Lengths of the n-grams that are looked up.
const SHORTEST: usize = 2;
const LONGEST: usize = 4;

/// Kinds of matches, by the length of the n-gram.
pub(super) const KINDS: usize = LONGEST + 1 - SHORTEST;

/// The last tokens of a text, the most recent at the end; shorter n-grams are padded with [`NONE`] at the front.
type Ngram = [u32; LONGEST];

/// No token: ids are checked against the vocabulary, which is smaller.
const NONE: u32 = u32::MAX;

/// Texts with an index of their n-grams. Memory and time are O(1) per token.
#[derive(Default)]
pub(super) struct Lookup {
    tokens: Vec<u32>,
    /// End of an n-gram's last occurrence.
    followers: HashMap<Ngram, usize>,
    /// Start of the text in progress.
    start: usize,
}

/// A match in a text: its continuation is the guess.
#[derive(Clone, Copy)]
pub(super) struct Match {
    /// 0 for the shortest n-grams.
    pub kind: usize,
    at: usize,
    /// The token after it.
    pub next: u32,
}

impl Lookup {
    /// A lookup in one text.
    pub fn of(text: &[u32]) -> Lookup {
        let mut lookup = Lookup::default();
        lookup.extend(text);
        lookup
    }

    /// Tokens of all texts.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Adds the next tokens of the text.
    pub fn extend(&mut self, tokens: &[u32]) {
        for token in tokens {
            for ngram in ngrams(&self.tokens[self.start..]).flatten() {
                self.followers.insert(ngram, self.tokens.len());
            }
            self.tokens.push(*token);
        }
    }

    /// Adds a separate text: no n-gram reaches into the one before.
    pub fn add(&mut self, text: &[u32]) {
        self.start = self.tokens.len();
        self.extend(text);
    }

    /// The longest n-gram at the end of `text` that has been seen.
    pub fn find(&self, text: &[u32]) -> Option<Match> {
        let found = ngrams(text).enumerate().filter_map(|(kind, ngram)| {
            let at = *self.followers.get(&ngram?)?;
            Some(Match { kind, at, next: self.tokens[at] })
        });
        found.last()
    }

    /// The first `count` tokens after a match; if the text ends first, they repeat from the match on.
    pub fn following(&self, found: Match, count: usize) -> Vec<u32> {
        self.tokens[found.at..].iter().copied().cycle().take(count).collect()
    }
}

/// The n-grams at the end of a text, shortest first; `None` if the text is shorter.
fn ngrams(text: &[u32]) -> impl Iterator<Item = Option<Ngram>> {
    (SHORTEST..=LONGEST).map(|n| {
        let last = &text[text.len().checked_sub(n)?..];
        let mut ngram = [NONE; LONGEST];
        ngram[LONGEST - n..].copy_from_slice(last);
        Some(ngram)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guess(lookup: &Lookup, text: &[u32], count: usize) -> Option<(usize, Vec<u32>)> {
        lookup.find(text).map(|found| (found.kind, lookup.following(found, count)))
    }

    #[test]
    fn the_longest_match_wins_and_of_equals_the_last() {
        let mut lookup = Lookup::default();
        let text = [1, 2, 3, 4, 9, 2, 3, 5, 8, 2, 3];
        lookup.extend(&text);
        assert_eq!(guess(&lookup, &text, 2), Some((0, vec![5, 8])));
        assert_eq!(guess(&lookup, &[1, 2, 3], 2), Some((1, vec![4, 9])));
        assert_eq!(guess(&lookup, &[7, 8, 9], 2), None);
        assert_eq!(guess(&lookup, &[3], 2), None);
    }

    #[test]
    fn a_loop_goes_on_and_texts_do_not_join() {
        let mut lookup = Lookup::default();
        lookup.extend(&[1, 2, 1, 2]);
        assert_eq!(guess(&lookup, &[1, 2, 1, 2], 5), Some((0, vec![1, 2, 1, 2, 1])));
        lookup.add(&[3, 4, 5]);
        assert_eq!(guess(&lookup, &[2, 3], 1), None);
        assert_eq!(guess(&lookup, &[3, 4], 1), Some((0, vec![5])));
    }
}
