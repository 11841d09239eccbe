//! The only difference from slab-core.

#![allow(clippy::print_stdout, reason = "it is how Cargo is told")]

fn main() {
    println!("cargo::rustc-cfg=slab_uncounted");
    println!("cargo::rerun-if-changed=build.rs");
}
