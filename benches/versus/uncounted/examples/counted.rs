//! The program of `ci/uncounted` with slab-core.

use slab_core as measured;

#[path = "../program.rs"]
mod program;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    program::run()
}
