//! The addresses at which a process listens: a text, in which commas separate several, or a list.

use super::{Mistake, mistake};
use amalgam_workload::At;
use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::fmt;

pub(super) struct Addresses(Vec<String>);

/// The addresses in a text.
pub fn addresses_of(text: &str) -> impl Iterator<Item = String> {
    text.split(',').map(|address| address.trim().to_owned())
}

impl<'de> Deserialize<'de> for Addresses {
    // Not derived: a derived implementation does not say which forms it knows.
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Addresses, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = Addresses;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an address, or a list of addresses")
            }

            fn visit_str<E>(self, text: &str) -> Result<Addresses, E> {
                Ok(Addresses(addresses_of(text).collect()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut each: A) -> Result<Addresses, A::Error> {
                let mut addresses = Vec::new();
                while let Some(text) = each.next_element::<String>()? {
                    addresses.extend(addresses_of(&text));
                }
                Ok(Addresses(addresses))
            }
        }
        from.deserialize_any(Either)
    }
}

/// The addresses of a key; none if it is not there.
pub(super) fn addresses(key: &str, written: Option<At<Addresses>>) -> Result<Vec<String>, Mistake> {
    match written {
        None => Ok(Vec::new()),
        Some(At { at, value: Addresses(each) }) if each.is_empty() => {
            Err(mistake(at, format!("`{key}` is an empty list"), "write at least one address, or leave it out"))
        }
        Some(At { value: Addresses(each), .. }) => Ok(each),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::parse;

    #[test]
    fn addresses_are_a_text_or_a_list() {
        let listen = |text: &str| parse(text).map(|config| (config.listen, config.listen_agents));
        let two = vec!["10.0.0.1:7433".to_owned(), "[fd00::1]:7433".to_owned()];
        assert_eq!(listen("listen = '10.0.0.1:7433'").unwrap().0, two[..1]);
        assert_eq!(listen("listen = '10.0.0.1:7433, [fd00::1]:7433'").unwrap().0, two);
        assert_eq!(listen("listen = ['10.0.0.1:7433', '[fd00::1]:7433']").unwrap().0, two);
        assert_eq!(listen("listen_agents = ['10.0.0.1:7433', '[fd00::1]:7433']").unwrap(), (Vec::new(), two));
        for (text, expected) in [
            ("listen = []", "server.toml:1:10: `listen` is an empty list\n  help: write at least one address"),
            ("listen_agents = []", "`listen_agents` is an empty list"),
            ("listen = 7433", "an address, or a list of addresses"),
            ("listen = ['a:1', []]", "server.toml:1:18: "),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
