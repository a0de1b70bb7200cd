//! Finds outputs of one stage that clash: for one of its tasks they are the same file, or one is a directory in the path of the
//! other. An example is `part-0` and `part-{index}` for the task of index 0.

use super::TaskSet;
use super::files::{INDEX, INDEX_DIGITS, name_for};
use std::collections::BTreeMap;

/// The most pairs that are compared of names that start alike and continue with the index in one and with digits in the other.
const MOST_PAIRS: usize = 1_000_000;
/// The problem if there are more pairs.
pub const LOOK_ALIKE: &str = "more than a million pairs of its outputs may be one file for some index";

/// Outputs that clash, by their places in the list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Clash {
    /// For the task of this index both are one file.
    Same { one: usize, other: usize, index: u64 },
    /// For the task of this index `one` is a directory that contains `other`.
    Inside { one: usize, other: usize, index: u64 },
    /// Too many pairs to compare.
    TooMany,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Symbol {
    End,
    Index,
    Byte(u8),
}

/// The first clash that is found.
pub fn clash(outputs: &[String], tasks: &TaskSet) -> Option<Clash> {
    let any_index = (!tasks.is_empty()).then(|| tasks.index_value(0))?;
    let (mut groups, mut pairs) = (vec![((0..outputs.len()).collect::<Vec<_>>(), 0)], 0);
    // The names of a group are equal up to this byte, for every index.
    while let Some((group, at)) = groups.pop() {
        let mut by_next: BTreeMap<Symbol, Vec<usize>> = BTreeMap::new();
        for &place in &group {
            by_next.entry(next_symbol(&outputs[place][at..])).or_default().push(place);
        }
        let those = |part: Symbol| by_next.get(&part).map_or(&[][..], Vec::as_slice);
        if let [one, other, ..] = *those(Symbol::End) {
            return Some(Clash::Same { one, other, index: any_index });
        }
        if let (&[one, ..], &[other, ..]) = (those(Symbol::End), those(Symbol::Byte(b'/'))) {
            return Some(Clash::Inside { one, other, index: any_index });
        }
        let digits = (b'0'..=b'9').flat_map(|digit| those(Symbol::Byte(digit)));
        for (&with_index, &with_digit) in
            those(Symbol::Index).iter().flat_map(|one| digits.clone().map(move |other| (one, other)))
        {
            pairs += 1;
            if pairs > MOST_PAIRS {
                return Some(Clash::TooMany);
            }
            let found = candidates(&outputs[with_digit][at..]).filter(|index| tasks.position_of(*index).is_some());
            if let Some(clash) = found.filter_map(|index| compare(outputs, with_index, with_digit, index)).next() {
                return Some(clash);
            }
        }
        for (part, group) in by_next.into_iter().filter(|(_, group)| group.len() > 1) {
            groups.push((group, at + if part == Symbol::Index { INDEX.len() } else { 1 }));
        }
    }
    None
}

fn next_symbol(rest: &str) -> Symbol {
    match rest.bytes().next() {
        None => Symbol::End,
        Some(_) if rest.starts_with(INDEX) => Symbol::Index,
        Some(byte) => Symbol::Byte(byte),
    }
}

/// The possible indexes, at most one for each number of digits, with which a name that starts with digits starts with the index
/// itself: the index starts with these digits and, where the name continues with the index, repeats them.
fn candidates(rest: &str) -> impl Iterator<Item = u64> {
    let length = rest.bytes().take_while(u8::is_ascii_digit).count();
    let longest = if rest[length..].starts_with(INDEX) { INDEX_DIGITS } else { length.min(INDEX_DIGITS) };
    (1..=longest).filter_map(move |digits| {
        let index: String = rest[..length].chars().cycle().take(digits).collect();
        // Indexes have no leading zeros.
        index.parse().ok().filter(|number: &u64| number.to_string() == index)
    })
}

fn compare(outputs: &[String], one: usize, other: usize, index: u64) -> Option<Clash> {
    let (first, second) = (name_for(&outputs[one], index), name_for(&outputs[other], index));
    let is_inside = |one: &str, other: &str| other.strip_prefix(one).is_some_and(|rest| rest.starts_with('/'));
    if first == second {
        Some(Clash::Same { one, other, index })
    } else if is_inside(&first, &second) {
        Some(Clash::Inside { one, other, index })
    } else {
        is_inside(&second, &first).then_some(Clash::Inside { one: other, other: one, index })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vocabulary::{Chance, IndexRange};

    fn found(tasks: &TaskSet, outputs: &[&str]) -> Option<Clash> {
        clash(&outputs.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>(), tasks)
    }

    #[test]
    fn a_clash_is_found_for_any_index() {
        let far = TaskSet::Indexes(vec![IndexRange { first: u64::MAX - 9, last: u64::MAX, step: 1 }]);
        assert_eq!(
            found(&far, &["{index}", "18446744073709551615"]),
            Some(Clash::Same { one: 0, other: 1, index: u64::MAX })
        );
        let clash = found(&TaskSet::Count(20), &["{index}1", "1{index}"]);
        assert_eq!(clash, Some(Clash::Same { one: 0, other: 1, index: 1 }));
        assert_eq!(found(&TaskSet::Count(1), &["{index}1", "1{index}"]), None);
        assert_eq!(
            found(&TaskSet::Count(9), &["a1/b", "a{index}"]),
            Some(Clash::Inside { one: 1, other: 0, index: 1 })
        );
        let many: Vec<String> =
            (0..2_000).map(|n| if n % 2 == 0 { format!("{{index}}x{n}") } else { format!("1y{n}") }).collect();
        assert_eq!((clash_of(&many[..1_000]), clash_of(&many)), (None, None));
        let more: Vec<String> = many.iter().flat_map(|name| [format!("{name}-"), format!("{name}+")]).collect();
        assert_eq!(clash_of(&more), Some(Clash::TooMany));
    }

    fn clash_of(outputs: &[String]) -> Option<Clash> {
        clash(outputs, &TaskSet::Count(10))
    }

    /// Compares all names for all indexes.
    fn is_any(outputs: &[String], tasks: &TaskSet) -> bool {
        (0..tasks.len()).map(|position| tasks.index_value(position)).any(|index| {
            (0..outputs.len()).any(|one| (0..one).any(|other| compare(outputs, one, other, index).is_some()))
        })
    }

    #[test]
    fn found_clashes_are_real_and_none_is_missed() {
        let mut chance = Chance::new(1, "clashes");
        let (mut clashes, mut clean) = (0, 0);
        for _ in 0..20_000 {
            let mut name = || -> String {
                let parts = 1 + chance.below(4_u64);
                (0..parts)
                    .map(|_| ["{index}", "{index}", "1", "2", "0", "12", "a", "/"][chance.below(8_u64) as usize])
                    .collect()
            };
            let outputs: Vec<String> = (0..3).map(|_| name()).collect();
            let first = chance.below(3_u64);
            let ranges = vec![
                IndexRange { first, last: first + chance.below(30_u64), step: 1 + chance.below(3_u64) },
                IndexRange { first: 100, last: 100 + chance.below(150_u64), step: 1 + chance.below(7_u64) },
            ];
            let tasks = TaskSet::Indexes(ranges);
            match clash(&outputs, &tasks) {
                Some(found @ (Clash::Same { one, other, index } | Clash::Inside { one, other, index })) => {
                    assert!(tasks.position_of(index).is_some(), "{outputs:?}");
                    assert_eq!(compare(&outputs, one, other, index), Some(found), "{outputs:?}");
                    clashes += 1;
                }
                Some(Clash::TooMany) => panic!("three names are few"),
                None => {
                    assert!(!is_any(&outputs, &tasks), "{outputs:?} {tasks:?}");
                    clean += 1;
                }
            }
        }
        assert!(clashes > 1_000 && clean > 1_000, "{clashes} {clean}");
    }
}
