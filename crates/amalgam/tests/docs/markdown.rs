//! The parts of a Markdown page that the rules need.

use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};
use std::collections::{BTreeMap, BTreeSet};

pub struct Page {
    /// The path in the repository.
    pub path: String,
    pub text: String,
}

pub struct Link {
    /// From 1.
    pub line: usize,
    pub to: String,
}

/// A fenced block.
pub struct Block {
    /// The first line of content, from 1.
    pub line: usize,
    pub info: String,
    /// Whether the fence is not indented.
    pub is_at_margin: bool,
    pub content: String,
}

impl Page {
    pub fn new(path: String, text: String) -> Page {
        Page { path, text }
    }

    fn events(&self) -> impl Iterator<Item = (Event<'_>, std::ops::Range<usize>)> {
        Parser::new_ext(&self.text, Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH).into_offset_iter()
    }

    fn line_of(&self, at: usize) -> usize {
        self.text[..at].matches('\n').count() + 1
    }

    /// Links and images, as they are written.
    pub fn links(&self) -> Vec<Link> {
        let links = self.events().filter_map(|(event, range)| match event {
            Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                Some(Link { line: self.line_of(range.start), to: dest_url.into_string() })
            }
            _ => None,
        });
        links.collect()
    }

    /// The anchors of headings: in lower case without punctuation, with a number for a repeated heading.
    pub fn anchors(&self) -> BTreeSet<String> {
        let (mut anchors, mut seen) = (BTreeSet::new(), BTreeMap::<String, u32>::new());
        let mut heading: Option<String> = None;
        for (event, _) in self.events() {
            match event {
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::Text(text) | Event::Code(text) => {
                    if let Some(heading) = &mut heading {
                        heading.push_str(&text);
                    }
                }
                Event::End(TagEnd::Heading(_)) => {
                    let anchor = anchor(&heading.take().unwrap_or_default());
                    let again = seen.entry(anchor.clone()).or_default();
                    anchors.insert(if *again == 0 { anchor } else { format!("{anchor}-{again}") });
                    *again += 1;
                }
                _ => {}
            }
        }
        anchors
    }

    pub fn blocks(&self) -> Vec<Block> {
        let mut blocks = Vec::new();
        let mut open: Option<Block> = None;
        for (event, range) in self.events() {
            match event {
                Event::Start(Tag::CodeBlock(CodeBlockKind::Fenced(info))) => {
                    let is_at_margin = range.start == 0 || self.text[..range.start].ends_with('\n');
                    let (line, info) = (self.line_of(range.start) + 1, info.into_string());
                    open = Some(Block { line, info, is_at_margin, content: String::new() });
                }
                Event::Text(text) => {
                    if let Some(block) = &mut open {
                        block.content.push_str(&text);
                    }
                }
                Event::End(TagEnd::CodeBlock) => blocks.extend(open.take()),
                _ => {}
            }
        }
        blocks
    }

    /// All inline code and code blocks.
    pub fn code(&self) -> Vec<String> {
        let spans = self.events().filter_map(|(event, _)| match event {
            Event::Code(text) => Some(text.into_string()),
            _ => None,
        });
        spans.chain(self.blocks().into_iter().map(|block| block.content)).collect()
    }

    /// The code in the first cell of each table row, without header rows.
    pub fn first_cells(&self) -> Vec<String> {
        let (mut found, mut cell) = (Vec::new(), 0);
        let mut is_head = false;
        for (event, _) in self.events() {
            match event {
                Event::Start(Tag::TableHead) => is_head = true,
                Event::End(TagEnd::TableHead) => is_head = false,
                Event::Start(Tag::TableRow) => cell = 0,
                Event::Start(Tag::TableCell) => cell += 1,
                Event::End(TagEnd::Table) => cell = 0,
                Event::Code(text) if cell == 1 && !is_head => found.push(text.into_string()),
                _ => {}
            }
        }
        found
    }
}

fn anchor(heading: &str) -> String {
    let kept = heading.trim().chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.flat_map(|c| if c == ' ' { '-' } else { c }.to_lowercase()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(text: &str) -> Page {
        Page::new("page.md".to_owned(), text.to_owned())
    }

    #[test]
    fn headings_are_named_as_links_name_them() {
        let page = page("# Getting started\n## `amalgam run`, and then?\n## Limits\ntext\n### Limits\n");
        let anchors: Vec<String> = page.anchors().into_iter().collect();
        assert_eq!(anchors, ["amalgam-run-and-then", "getting-started", "limits", "limits-1"]);
    }

    #[test]
    fn blocks_know_their_lines_and_marks() {
        let page = page("text\n\n```console run\n$ a\nb\n```\n\n* item\n\n  ```toml\n  c\n  ```\n");
        let found: Vec<_> = page.blocks().into_iter().map(|b| (b.line, b.info, b.is_at_margin, b.content)).collect();
        assert_eq!(found[0], (4, "console run".to_owned(), true, "$ a\nb\n".to_owned()));
        assert_eq!(found[1], (11, "toml".to_owned(), false, "c\n".to_owned()));
    }

    #[test]
    fn links_of_every_form_are_found_and_those_in_code_are_not() {
        let page = page("[a](b.md) ![c](d.png) [e][f]\n`[g](h)`\n\n[f]: i.md#j\n\n```\n[k](l)\n```\n");
        let found: Vec<String> = page.links().into_iter().map(|link| link.to).collect();
        assert_eq!(found, ["b.md", "d.png", "i.md#j"]);
    }

    #[test]
    fn first_cells_are_those_of_bodies() {
        let page = page("| `key` | type |\n|---|---|\n| `a.b` | `text` |\n| `c` | number |\n\n`d`\n");
        assert_eq!(page.first_cells(), ["a.b", "c"]);
    }
}
