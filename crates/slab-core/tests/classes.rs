//! Lists of size classes at their limits: what is only just allowed, and what only just not.

use slab_core::{ConfigError, MAX_CHUNK_BYTES, MAX_CLASSES, SizeClasses};

#[test]
fn the_longest_list_and_the_largest_chunk_are_accepted() {
    let longest: Vec<usize> = (1..=MAX_CLASSES).map(|index| index * 64).collect();
    let classes = SizeClasses::explicit(&longest).unwrap();
    assert_eq!(classes.sizes(), longest);
    let largest = SizeClasses::explicit(&[64, MAX_CHUNK_BYTES]).unwrap();
    assert_eq!(largest.largest(), MAX_CHUNK_BYTES);
    assert_eq!(largest.class_for(MAX_CHUNK_BYTES), Some(1));
    let geometric = SizeClasses::geometric(64, MAX_CHUNK_BYTES, 16.0).unwrap();
    assert_eq!(geometric.largest(), MAX_CHUNK_BYTES);
}

#[test]
fn sizes_become_multiples_of_the_alignment_asked_for() {
    let classes = SizeClasses::explicit(&[64, 1280, 1536]).unwrap();
    let aligned = |align| classes.clone().aligned_to(align).unwrap();
    assert_eq!(aligned(64).sizes(), [64, 1280, 1536]);
    assert_eq!(aligned(512).sizes(), [512, 1536]);
    assert_eq!(aligned(4096).sizes(), [4096]);
}

#[test]
fn one_class_too_many_is_refused() {
    let refused = SizeClasses::geometric(64, 64 * (MAX_CLASSES + 1), 1.0001);
    let count = MAX_CLASSES + 1;
    assert_eq!(refused, Err(ConfigError::TooManyClasses { count }));
}

#[test]
fn the_list_for_networks_has_the_sizes_that_packets_have() {
    let classes = SizeClasses::network();
    for len in [64, 1280, 1536, 2048, 9216, 65536] {
        assert!(classes.exact(len).is_some(), "{len}");
    }
    assert_eq!((classes.sizes()[0], classes.largest()), (64, 65536));
    assert!((32..=65536).all(|len| classes.round_up(len).unwrap() <= 2 * len));
}

#[test]
fn the_list_for_general_use_is_of_powers_of_two() {
    let powers: Vec<usize> = (6..=20).map(|log2| 1 << log2).collect();
    assert_eq!(SizeClasses::general().sizes(), powers);
}
