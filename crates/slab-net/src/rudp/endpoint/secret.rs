//! What strangers must not be able to guess: the conversation numbers, tokens and cookies of an endpoint.

use core::hash::{BuildHasher, Hash};
use std::collections::hash_map::RandomState;
use std::time::{SystemTime, UNIX_EPOCH};

/// A keyed hash whose key nobody else knows.
pub(super) struct Secret {
    keys: RandomState,
    /// The process, and when this was made. The keys alone are not an endpoint's own: std derives those of a thread from
    /// one random number, and the children of a `fork` go on with the thread, and the number, of their parent.
    made: (u32, u128),
}

impl Secret {
    pub(super) fn new() -> Self {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
        let nanos = since_epoch.map_or(0, |since| since.as_nanos());
        Self {
            keys: RandomState::new(),
            made: (std::process::id(), nanos),
        }
    }

    pub(super) fn hash(&self, of: impl Hash) -> u64 {
        self.keys.hash_one((self.made, of))
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    #[test]
    #[allow(unsafe_code)]
    fn parent_and_children_of_a_fork_have_different_secrets() {
        // From here on the thread has its random number.
        drop(RandomState::new());
        let mut seen = Vec::new();
        for _ in 0..2 {
            let (mut reader, mut writer) = std::io::pipe().unwrap();
            // SAFETY: the child only hashes, writes to the pipe, and exits.
            let child = unsafe { libc::fork() };
            if child == 0 {
                let sent = writer.write_all(&Secret::new().hash(7).to_le_bytes());
                // SAFETY: `_exit` only ends the process.
                unsafe { libc::_exit(i32::from(sent.is_err())) };
            }
            drop(writer);
            let mut theirs = [0; 8];
            reader.read_exact(&mut theirs).unwrap();
            seen.push(u64::from_le_bytes(theirs));
            let mut status = -1;
            // SAFETY: `status` is valid for the call's write.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert_eq!(status, 0);
        }
        seen.push(Secret::new().hash(7));
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 3, "{seen:?}");
    }
}
