//! A file over a stream: its length in 8 bytes, its contents, and their SHA-256.

use crate::Result;
use crate::progress::Progress;
use sha2::{Digest, Sha256};
use slab_net::rudp::Stream;
use std::path::Path;
use tokio::fs::File;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

pub(crate) type Hash = [u8; 32];

const BUFFER_BYTES: usize = 256 << 10;

/// Sends a file, and returns its hash.
pub(crate) async fn send(stream: &mut Stream, from: &Path, progress: &Progress) -> Result<Hash> {
    let mut file = File::open(from).await?;
    let len = file.metadata().await?.len();
    stream.write_all(&len.to_be_bytes()).await?;
    let (mut hash, mut piece) = (Sha256::new(), vec![0; BUFFER_BYTES]);
    let mut left = len;
    while left > 0 {
        let read = file.read(&mut piece).await?;
        if read == 0 {
            return Err("the file became shorter meanwhile".into());
        }
        let read = read.min(usize::try_from(left).unwrap_or(usize::MAX));
        hash.update(&piece[..read]);
        stream.write_all(&piece[..read]).await?;
        progress.add(read);
        left -= read as u64;
    }
    let hash: Hash = hash.finalize().into();
    stream.write_all(&hash).await?;
    Ok(hash)
}

/// A file whose first bytes have arrived.
pub(crate) struct Incoming {
    left: u64,
}

impl Incoming {
    /// Waits for its first bytes.
    pub(crate) async fn begin(stream: &mut Stream) -> Result<Self> {
        Ok(Self {
            left: stream.read_u64().await?,
        })
    }

    /// Stores the rest, and returns its hash after comparing it with the sender's.
    pub(crate) async fn receive(
        &mut self,
        stream: &mut Stream,
        to: &Path,
        progress: &Progress,
    ) -> Result<Hash> {
        let mut file = File::create(to).await?;
        let (mut hash, mut piece) = (Sha256::new(), vec![0; BUFFER_BYTES]);
        while self.left > 0 {
            let most = BUFFER_BYTES.min(usize::try_from(self.left).unwrap_or(BUFFER_BYTES));
            let read = stream.read(&mut piece[..most]).await?;
            if read == 0 {
                return Err("the stream ended early".into());
            }
            hash.update(&piece[..read]);
            file.write_all(&piece[..read]).await?;
            progress.add(read);
            self.left -= read as u64;
        }
        file.flush().await?;
        let mut told: Hash = [0; 32];
        stream.read_exact(&mut told).await?;
        let hash: Hash = hash.finalize().into();
        if hash != told {
            return Err("the hash differs".into());
        }
        Ok(hash)
    }
}

/// Returns the hash of a stored file.
pub(crate) async fn hash_file(path: &Path) -> Result<Hash> {
    let (mut file, mut piece) = (File::open(path).await?, vec![0; BUFFER_BYTES]);
    let mut hash = Sha256::new();
    loop {
        let read = file.read(&mut piece).await?;
        if read == 0 {
            return Ok(hash.finalize().into());
        }
        hash.update(&piece[..read]);
    }
}

pub(crate) fn hex(hash: &Hash) -> String {
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}
