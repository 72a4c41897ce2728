//! Sorting where speed does not matter.

use std::cmp::Ordering;

/// Sorts stably. The standard library's sort is compiled again, in a thousand lines, for every type and every order; this one sorts
/// indices, and is compiled once.
pub fn sort_by<T>(items: &mut [T], order: impl Fn(&T, &T) -> Ordering) {
    let mut from: Vec<usize> = (0..items.len()).collect();
    sort_indices(&mut from, &|a, b| order(&items[a], &items[b]));
    // item from[i] belongs at i: each cycle of the permutation is followed once
    for start in 0..items.len() {
        let mut at = start;
        while from[at] != start {
            let next = from[at];
            items.swap(at, next);
            from[at] = at;
            at = next;
        }
        from[at] = at;
    }
}

fn sort_indices(indices: &mut [usize], order: &dyn Fn(usize, usize) -> Ordering) {
    indices.sort_by(|a, b| order(*a, *b));
}

#[cfg(test)]
mod tests {
    #[test]
    fn it_is_the_stable_sort() {
        for len in 0..40 {
            let items: Vec<(usize, usize)> = (0..len).map(|i| (i * 7919 % 11 % (len / 2 + 1), i)).collect();
            let (mut found, mut expected) = (items.clone(), items);
            super::sort_by(&mut found, |a, b| b.0.cmp(&a.0));
            expected.sort_by_key(|item| std::cmp::Reverse(item.0));
            assert_eq!(found, expected);
        }
    }
}
