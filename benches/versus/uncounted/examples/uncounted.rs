//! The program of `ci/uncounted` with slab-core-uncounted.

use slab_core_uncounted as measured;

#[path = "../program.rs"]
mod program;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    program::run()
}
