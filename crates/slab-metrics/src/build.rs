//! The series that says how the program was built.

use crate::names::BUILD_INFO;
use crate::series::{Describe, Source};

/// The source that every collector has without registering it.
pub(crate) struct BuildSource;

impl Source for BuildSource {
    fn describe(&self, to: &mut Describe<'_>) {
        let profile = match cfg!(debug_assertions) {
            true => "debug",
            false => "release",
        };
        let labels = [
            ("version", env!("CARGO_PKG_VERSION").into()),
            ("profile", profile.into()),
            ("os", std::env::consts::OS.into()),
            ("arch", std::env::consts::ARCH.into()),
        ];
        to(&BUILD_INFO, &labels);
    }

    fn read(&self, values: &mut Vec<u64>) {
        values.push(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_series_says_how_the_program_was_built() {
        let mut all = Vec::new();
        BuildSource.describe(&mut |family, labels| all.push((family.name, labels.to_vec())));
        let profile = if cfg!(debug_assertions) {
            "debug"
        } else {
            "release"
        };
        let labels = [
            ("version", env!("CARGO_PKG_VERSION").into()),
            ("profile", profile.into()),
            ("os", std::env::consts::OS.into()),
            ("arch", std::env::consts::ARCH.into()),
        ];
        assert_eq!(all, [("slab_build_info", labels.to_vec())]);
    }
}
