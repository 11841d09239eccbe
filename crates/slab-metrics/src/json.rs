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
