//! A writer of JSON.

use std::fmt::Write;

/// Writes JSON, with a comma before everything that is not the first in its brackets.
#[derive(Debug, Default)]
pub(crate) struct Json {
    pub(crate) text: String,
}

impl Json {
    fn comma(&mut self) {
        if !self.text.is_empty() && !self.text.ends_with(['{', '[', ':']) {
            self.text.push(',');
        }
    }

    pub(crate) fn object(&mut self, members: impl FnOnce(&mut Self)) {
        self.comma();
        self.text.push('{');
        members(self);
        self.text.push('}');
    }

    pub(crate) fn array(&mut self, elements: impl FnOnce(&mut Self)) {
        self.comma();
        self.text.push('[');
        elements(self);
        self.text.push(']');
    }

    pub(crate) fn key(&mut self, key: &str) {
        self.comma();
        self.string(key);
        self.text.push(':');
    }

    pub(crate) fn text(&mut self, key: &str, value: &str) {
        self.key(key);
        self.string(value);
    }

    pub(crate) fn number(&mut self, key: &str, value: impl TryInto<u64>) {
        self.key(key);
        let value = value.try_into().unwrap_or(u64::MAX);
        // Writing to a string does not fail.
        let _ = write!(self.text, "{value}");
    }

    fn string(&mut self, value: &str) {
        self.text.push('"');
        for c in value.chars() {
            match c {
                '"' | '\\' => self.text.extend(['\\', c]),
                c if c < ' ' => {
                    let _ = write!(self.text, "\\u{:04x}", u32::from(c));
                }
                c => self.text.push(c),
            }
        }
        self.text.push('"');
    }
}

/// Returns the members that are not zero for these statistics, with their values where those are not 1.
#[cfg(test)]
pub(crate) fn nonzero_members<S>(write: fn(&S, &mut Json), stats: &S) -> Vec<String> {
    let shows = members(write, stats).into_iter();
    let shows = shows.filter(|&(_, value)| value > 0);
    shows
        .map(|(name, value)| match value {
            1 => name,
            _ => format!("{name}={value}"),
        })
        .collect()
}

#[cfg(test)]
pub(crate) fn members<S>(write: fn(&S, &mut Json), stats: &S) -> Vec<(String, u64)> {
    let mut json = Json::default();
    json.object(|json| write(stats, json));
    let object: serde_json::Map<_, _> = serde_json::from_str(&json.text).expect(&json.text);
    let members = object.into_iter();
    members
        .map(|(name, value)| (name, value.as_u64().unwrap()))
        .collect()
}

/// Asserts that each field, set alone to one, shows as one in the named members alone, and that every member is
/// named, but for the others.
#[cfg(test)]
macro_rules! assert_each_field_has_its_members {
    ($write:expr, $nothing:expr, others: $others:expr;
        $($($field:ident).+ = $value:expr => $($member:literal)*;)*) => {
        let mut named = std::collections::BTreeSet::<&str>::from($others);
        $(
            let mut stats = $nothing;
            stats.$($field).+ = $value;
            let expected: &[&str] = &[$($member),*];
            assert_eq!(crate::json::nonzero_members($write, &stats), expected);
            named.extend(expected);
        )*
        let all = crate::json::members($write, &$nothing);
        assert!(all.iter().all(|(name, _)| named.contains(&**name)), "{all:?}");
        assert_eq!(all.len(), named.len());
    };
}

#[cfg(test)]
pub(crate) use assert_each_field_has_its_members;
