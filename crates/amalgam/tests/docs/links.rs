//! Links between pages, and the summary that lists them.

use crate::markdown::{Link, Page};
use std::collections::{BTreeMap, BTreeSet};

/// Pages that the summary does not have to list: decision records are found by their numbers.
const NOT_OF_THE_BOOK: [&str; 2] = ["docs/SUMMARY.md", "docs/decisions/"];

/// The broken links of a page.
pub fn broken(page: &Page, pages: &BTreeMap<String, Page>, exists: &dyn Fn(&str) -> bool) -> Vec<String> {
    let each = page.links().into_iter().filter(|link| !is_external(&link.to));
    let wrong = each.filter_map(|Link { line, to }| {
        let problem = problem(page, &to, pages, exists)?;
        Some(format!("{}:{line}: the link to `{to}` is broken: {problem}", page.path))
    });
    wrong.collect()
}

fn problem(page: &Page, to: &str, pages: &BTreeMap<String, Page>, exists: &dyn Fn(&str) -> bool) -> Option<String> {
    let (path, anchor) = to.split_once('#').map_or((to, None), |(path, anchor)| (path, Some(anchor)));
    let target = match resolved(&page.path, path) {
        Some(target) => target,
        None => return Some("it leaves the repository".to_owned()),
    };
    if !exists(&target) {
        return Some(format!("{target} does not exist"));
    }
    let anchor = anchor.filter(|_| target.ends_with(".md"))?;
    let other = pages.get(&target)?;
    (!other.anchors().contains(anchor)).then(|| format!("{target} has no heading `#{anchor}`"))
}

/// The pages that the summary does not link to.
pub fn unlisted<'a>(summary: &Page, pages: impl Iterator<Item = &'a str>) -> Vec<String> {
    let listed: BTreeSet<String> =
        summary.links().iter().filter_map(|link| resolved(&summary.path, link.to.split('#').next()?)).collect();
    let of_the_book =
        |path: &&str| path.starts_with("docs/") && !NOT_OF_THE_BOOK.iter().any(|not| path.starts_with(not));
    let missing = pages.filter(of_the_book).filter(|path| !listed.contains(*path));
    missing.map(|path| format!("{}: does not list {path}", summary.path)).collect()
}

fn is_external(to: &str) -> bool {
    to.split_once(':').is_some_and(|(scheme, _)| !scheme.contains(['/', '#', '.']))
}

/// The target of a page's link as a path in the repository; `None` if it is outside.
fn resolved(from: &str, link: &str) -> Option<String> {
    if link.is_empty() {
        return Some(from.to_owned());
    }
    if link.starts_with('/') {
        return None;
    }
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in link.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(path: &str, text: &str) -> Page {
        Page::new(path.to_owned(), text.to_owned())
    }

    fn wrong(text: &str) -> Vec<String> {
        let other = page("docs/other.md", "# A heading\n");
        let pages = BTreeMap::from([(other.path.clone(), other)]);
        broken(&page("docs/page.md", text), &pages, &|path| matches!(path, "docs/other.md" | "LICENSE" | "docs"))
    }

    #[test]
    fn links_that_lead_somewhere_are_fine() {
        assert!(
            wrong("[a](other.md) [b](other.md#a-heading) [c](../LICENSE) [d](https://x.y/z) [e](../docs/)").is_empty()
        );
    }

    #[test]
    fn broken_links_are_noticed_with_their_lines() {
        let output = wrong("text\n[a](gone.md)");
        assert_eq!(output, ["docs/page.md:2: the link to `gone.md` is broken: docs/gone.md does not exist"]);
        assert_eq!(wrong("[a](other.md#no-heading)").len(), 1, "an anchor that is not there");
        assert_eq!(wrong("[a](#here)").len(), 1, "a page that is nowhere");
        assert_eq!(wrong("![a](picture.png)").len(), 1, "images too");
        assert_eq!(wrong("[a](../../LICENSE)").len(), 1, "outside of the repository");
        assert_eq!(wrong("[a](/LICENSE)").len(), 1, "absolute");
    }

    #[test]
    fn pages_that_the_summary_forgets_are_noticed() {
        let summary = page("docs/SUMMARY.md", "* [a](a.md)\n* [b](b/README.md)\n");
        let all =
            ["README.md", "docs/SUMMARY.md", "docs/a.md", "docs/b/README.md", "docs/b/c.md", "docs/decisions/1.md"];
        assert_eq!(unlisted(&summary, all.into_iter()), ["docs/SUMMARY.md: does not list docs/b/c.md"]);
    }
}
