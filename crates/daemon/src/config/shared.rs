//! What all processes of a federation have the same in their configurations. A master sends it to global masters that join
//! with a string, which need no file then (ADR 89).

use super::{Config, FederationConfig};
use amalgam_core::policy::inter_job::QueueTree;
use amalgam_core::preset::Preset;

/// The keys that have to be the same.
const KEYS: [&str; 4] = ["preset", "federation", "queue", "policies"];
/// Bytes of a longer description would not fit into the answer to a join string.
const LONGEST: usize = 32 * 1024;

/// That part of a configuration file with this text and this preset. `None` if it is too long.
pub(super) fn described(text: &str, preset: Preset) -> Option<String> {
    let mut table: toml::Table = text.parse().ok()?;
    table.retain(|key, _| KEYS.contains(&key));
    table.insert("preset".to_owned(), preset.name().into());
    // Each process has its own.
    table.get_mut("federation")?.as_table_mut()?.remove("number");
    let text = toml::to_string(&table).ok()?;
    (text.len() <= LONGEST).then_some(text)
}

/// The first key in which two descriptions differ.
pub fn difference(one: &Config, other: &Config) -> Option<&'static str> {
    let of = |get: fn(&FederationConfig) -> &Vec<String>| {
        let [one, other] = [one, other].map(|config| config.federation.as_ref().map(get));
        one == other
    };
    let different = [
        ("`masters` of [federation]", of(|federation| &federation.masters)),
        ("`globals` of [federation]", of(|federation| &federation.interfaces)),
        ("[federation]", one.federation == other.federation),
        ("`preset`", one.preset.name() == other.preset.name()),
        ("[policies]", one.preset == other.preset),
        ("[[queue]]", one.queues == other.queues),
    ];
    different.into_iter().find(|(_, is_same)| !is_same).map(|(key, _)| key)
}

impl Config {
    /// Takes over the federation that a master has described. The other settings stay.
    ///
    /// # Errors
    /// Names a key that only a file with `[federation]` may have.
    pub fn adopt(&mut self, described: Config) -> Result<(), &'static str> {
        if self.queues != QueueTree::single() {
            return Err("[[queue]]");
        }
        if self.preset != Preset::default() && self.preset != described.preset {
            return Err("preset or [policies]");
        }
        self.preset = described.preset;
        self.queues = described.queues;
        self.federation = described.federation;
        self.master.dispatch.kinds = described.master.dispatch.kinds;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::parse;
    use super::*;

    const WHOLE: &str = "heartbeat = '3s'\nlisten = '10.0.0.1:1'\n[federation]\nmasters = ['a:1,b:1', 'c:2']\n\
                         globals = ['d:3', 'e:4']\nspan = 64\nnumber = 1\nkinds = ['fpga']\n\
                         [[queue]]\nname = 'a'\nglobal = 1\n[[queue]]\nname = 'b'\nguaranteed = 0.5\n";

    #[test]
    fn a_description_has_what_must_be_the_same_and_nothing_else() {
        let written = parse(WHOLE).unwrap();
        let text = written.description.clone().unwrap();
        assert!(!text.contains("10.0.0.1") && !text.contains("heartbeat") && !text.contains("number"), "{text}");
        let described = parse(&text).unwrap();
        assert_eq!(described.description.as_deref(), Some(text.as_str()));
        let mut without_number = written.clone();
        without_number.federation.as_mut().unwrap().number = None;
        assert_eq!(difference(&described, &without_number), None);
        let mut adopted = parse("kept_jobs = 7").unwrap();
        adopted.adopt(described).unwrap();
        assert_eq!((&adopted.queues, adopted.master.dispatch.kept_jobs), (&written.queues, 7));
        assert_eq!(adopted.master.dispatch.kinds, written.master.dispatch.kinds);
        assert_eq!(parse("preset = 'drf'").unwrap().description, None);
    }

    #[test]
    fn the_first_difference_is_named() {
        let of = |text: &str| parse(text).unwrap();
        let one = of(WHOLE);
        for (from, to, key) in [
            ("c:2", "c:5", "`masters` of [federation]"),
            ("d:3", "d:5", "`globals` of [federation]"),
            ("span = 64", "span = 65", "[federation]"),
            ("0.5", "0.25", "[[queue]]"),
        ] {
            assert_eq!(difference(&one, &of(&WHOLE.replace(from, to))), Some(key), "{from}");
        }
        assert_eq!(difference(&one, &one), None);
    }

    #[test]
    fn a_file_without_a_federation_has_no_queues_and_no_preset_of_its_own() {
        let described = parse(WHOLE).unwrap();
        for (text, key) in [("[[queue]]\nname = 'a'", "[[queue]]"), ("preset = 'fifo'", "preset or [policies]")] {
            assert_eq!(parse(text).unwrap().adopt(described.clone()), Err(key));
        }
    }

    #[test]
    fn a_description_that_is_too_long_is_not_sent() {
        let queues: String = (0..2_000).map(|number| format!("[[queue]]\nname = 'queue-{number}'\n")).collect();
        let config = parse(&format!("[federation]\nmasters = ['a:1']\n{queues}")).unwrap();
        assert_eq!(config.description, None);
    }
}
