//! Allocates and frees as often as it is told, for `ci/uncounted`, which counts the instructions.

use crate::measured::{Chunk, SlabPool};
use std::error::Error;
use std::hint::black_box;

/// Chunks that are held before they are freed: more than the magazines take.
const DEEP: usize = 256;

pub(crate) fn run() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let deep = arguments.next().as_deref() == Some("deep");
    let count: usize = arguments.next().ok_or("how often?")?.parse()?;
    let pool = SlabPool::builder().build()?;
    let mut held: Vec<Chunk> = Vec::with_capacity(DEEP);
    for _ in 0..count / DEEP {
        for _ in 0..DEEP {
            let chunk = black_box(&pool).try_alloc(black_box(2048))?;
            if deep {
                held.push(chunk);
            } else {
                drop(black_box(chunk));
            }
        }
        held.clear();
    }
    Ok(())
}
