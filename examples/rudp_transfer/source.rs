//! The file to move.

use crate::Result;
use crate::options::Options;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// A file, and whether it is removed at the end.
pub(crate) struct Source {
    path: PathBuf,
    len: u64,
    /// The folder for copies of the file.
    folder: PathBuf,
}

impl Source {
    /// Opens the given file, or makes a new one of random bytes.
    pub(crate) fn of(options: &Options) -> Result<Self> {
        let folder = std::env::temp_dir().join(format!("rudp_transfer-{}", std::process::id()));
        if let Some(path) = &options.file {
            let metadata = fs::metadata(path).map_err(|error| about(path, &error))?;
            if !metadata.is_file() {
                return Err(format!("{}: not a file", path.display()).into());
            }
            File::open(path).map_err(|error| about(path, &error))?;
            fs::create_dir(&folder).map_err(|error| about(&folder, &error))?;
            return Ok(Self {
                path: path.clone(),
                len: metadata.len(),
                folder,
            });
        }
        fs::create_dir(&folder).map_err(|error| about(&folder, &error))?;
        let source = Self {
            path: folder.join("source"),
            len: options.size << 20,
            folder,
        };
        source.fill()?;
        Ok(source)
    }

    fn fill(&self) -> Result<()> {
        let mut file = BufWriter::new(File::create(&self.path)?);
        let mut x = 0x9e37_79b9_7f4a_7c15_u64;
        for _ in 0..self.len / 8 {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            file.write_all(&x.to_le_bytes())?;
        }
        file.flush()?;
        Ok(())
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Returns a path for a copy.
    pub(crate) fn sibling(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }
}

fn about(path: &Path, error: &io::Error) -> String {
    format!("{}: {error}", path.display())
}

impl Drop for Source {
    fn drop(&mut self) {
        // If this fails, nothing can be done and little is lost: it is a temporary folder.
        let _ = fs::remove_dir_all(&self.folder);
    }
}
