//! Suggestions for misspelt names: "did you mean `x`?"

/// The candidate that is most similar to `written`, if it is similar enough to be a typo.
pub fn closest<'a>(written: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let written = written.to_lowercase().replace('-', "_");
    let near_enough = (written.chars().count() / 3).clamp(1, 3);
    candidates
        .into_iter()
        .map(|candidate| (distance(&written, &candidate.to_lowercase().replace('-', "_")), candidate))
        .filter(|(distance, _)| *distance <= near_enough)
        .min()
        .map(|(_, candidate)| candidate)
}

/// The number of letters to insert, delete, replace or swap with the next one. Only the first 64 letters are compared.
fn distance(left: &str, right: &str) -> usize {
    let (left, right): (Vec<char>, Vec<char>) = (left.chars().take(64).collect(), right.chars().take(64).collect());
    let mut before_last = Vec::new();
    let mut last: Vec<usize> = (0..=right.len()).collect();
    for (i, &a) in left.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, &b) in right.iter().enumerate() {
            let mut cost = (last[j] + usize::from(a != b)).min(last[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && a == right[j - 1] && left[i - 1] == b {
                cost = cost.min(before_last[j - 1] + 1);
            }
            row.push(cost);
        }
        before_last = std::mem::replace(&mut last, row);
    }
    last[right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typos_get_a_suggestion_and_other_words_get_none() {
        let names = ["command", "retries", "timeout", "max_fails"];
        assert_eq!(closest("comand", names), Some("command"));
        assert_eq!(closest("retires", names), Some("retries"));
        assert_eq!(closest("max-fail", names), Some("max_fails"));
        assert_eq!(closest("colour", names), None);
    }
}
