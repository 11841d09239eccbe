use super::*;
use crate::class::SizeClasses;
use crate::class::geometry::slab_bytes_for;
use crate::sys::room::Room;

pub(super) fn fixture() -> (Arena, ClassTable) {
    // Fewer chunks, for Miri.
    let small = if cfg!(miri) { 768 } else { 192 };
    let list = SizeClasses::explicit(&[small, 1536]).unwrap();
    let slab_bytes = slab_bytes_for(list.largest());
    let classes = ClassTable::new(list, 256 << 10);
    let arena = Arena::reserve(&mut Room::system(), 256 << 10, slab_bytes).unwrap();
    (arena, classes)
}

/// Carves everything for one class, returns the chunks.
pub(super) fn carve_all(
    slabs: &mut Slabs,
    arena: &Arena,
    classes: &ClassTable,
    class: u8,
) -> Vec<u32> {
    let mut units = Vec::new();
    let mut out = [0; 62];
    while let Ok(carved) = slabs.carve(arena, classes, class, &mut out) {
        units.extend(&out[..carved.chunks]);
    }
    units
}

#[test]
fn carving_yields_each_chunk_once_and_ends_at_the_cap() {
    let (arena, classes) = fixture();
    let mut slabs = Slabs::new(&mut Room::system(), &arena, classes.count(), Growth::Slab).unwrap();
    let mut spans = Vec::new();
    let mut out = [0; 62];
    for round in 0.. {
        let class = (round % 2) as u8;
        match slabs.carve(&arena, &classes, class, &mut out) {
            Ok(carved) => {
                assert!(carved.chunks > 0);
                let units = classes.geometry(class).units;
                spans.extend(
                    out[..carved.chunks]
                        .iter()
                        .map(|&unit| (unit, unit + units)),
                );
            }
            Err(error) => {
                let chunk_bytes = classes.geometry(class).bytes;
                assert_eq!(error, AllocError::Exhausted { chunk_bytes });
                break;
            }
        }
    }
    spans.sort_unstable();
    assert!(spans.windows(2).all(|pair| pair[0].1 <= pair[1].0));
    assert!(spans.last().unwrap().1 as usize * 64 <= arena.bytes());
    assert_eq!(slabs.committed(), arena.slabs());
    for class in 0..2u8 {
        let per_slab = u64::from(classes.geometry(class).chunks_per_slab);
        let entry = slabs.class(class);
        assert!(entry.carved <= entry.slabs * per_slab);
    }
}

#[test]
fn whole_slabs_become_unused_and_others_keep_their_class() {
    let (arena, classes) = fixture();
    let mut slabs = Slabs::new(&mut Room::system(), &arena, classes.count(), Growth::Slab).unwrap();
    let mut units = carve_all(&mut slabs, &arena, &classes, 0);
    // One chunk of the second slab is in use.
    let held = units
        .iter()
        .position(|&unit| unit / arena.slab_units() == 1)
        .unwrap();
    units.remove(held);
    units.reverse();
    slabs.store(&arena, 0, &units);
    let entry = *slabs.class(0);
    assert_eq!((entry.slabs, entry.carved - entry.stored), (1, 1));
    // The rest serves the other class, and is counted as moved.
    let others = carve_all(&mut slabs, &arena, &classes, 1);
    let per_slab = classes.geometry(1).chunks_per_slab as usize;
    assert_eq!(others.len(), (arena.slabs() - 1) * per_slab);
    assert_eq!(slabs.class(1).rebalances, arena.slabs() as u64 - 1);
    // What is stored comes back, each chunk once, in order of address.
    let again = carve_all(&mut slabs, &arena, &classes, 0);
    units.retain(|&unit| unit / arena.slab_units() == 1);
    units.reverse();
    assert_eq!(again, units);
    assert_eq!(slabs.class(0).stored, 0);
}

#[test]
fn peak_is_due_once_per_as_many_batches_as_threads() {
    let (arena, classes) = fixture();
    let mut slabs = Slabs::new(&mut Room::system(), &arena, classes.count(), Growth::Slab).unwrap();
    slabs.set_threads(3);
    let mut due = || {
        let mut out = [0; 10];
        slabs.carve(&arena, &classes, 1, &mut out).unwrap().peak_due
    };
    // 42 chunks in a slab.
    let one_slab = [true, false, false, true, false];
    for at in 0..10 {
        assert_eq!(due(), one_slab[at % 5], "{at}");
    }
}

#[test]
fn carving_reports_whether_the_system_backed_a_slab() {
    let (arena, classes) = fixture();
    let mut slabs = Slabs::new(&mut Room::system(), &arena, classes.count(), Growth::Slab).unwrap();
    let mut out = [0; 1];
    let mut grown = || {
        let carved = slabs.carve(&arena, &classes, 1, &mut out);
        carved.unwrap().grown
    };
    assert_eq!([grown(), grown()], [true, false]);
}

/// Whatever was carved and stored.
#[test]
fn a_slab_could_be_whole_if_it_lacks_no_more_than_are_free() {
    let (arena, classes) = fixture();
    let mut slabs = Slabs::new(&mut Room::system(), &arena, classes.count(), Growth::Slab).unwrap();
    let mut held = [Vec::new(), Vec::new()];
    let mut seed = 1_u64;
    let mut random = |below: usize| {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1);
        (seed >> 33) as usize % below
    };
    for _ in 0..if cfg!(miri) { 200 } else { 20_000 } {
        let class = random(2);
        let mut out = [0; 9];
        if random(2) == 0 {
            let room = &mut out[..=random(9)];
            if let Ok(carved) = slabs.carve(&arena, &classes, class as u8, room) {
                held[class].extend(&out[..carved.chunks]);
            }
        } else if !held[class].is_empty() {
            let unit = held[class].swap_remove(random(held[class].len()));
            slabs.store(&arena, class as u8, &[unit]);
        }
        let per_slab = classes.geometry(class as u8).chunks_per_slab;
        let free = random(per_slab as usize) as u32;
        let could = slabs.could_be_whole(class as u8, free.into());
        let of_class = slabs.table.iter().filter(|slab| slab.class == class as u8);
        assert_eq!(could, of_class.map(Slab::out).any(|out| out <= free));
    }
}

/// Chunks stored in several slabs come out at once, and the counts say so.
#[test]
fn one_carve_takes_stored_chunks_of_several_slabs() {
    let (arena, classes) = fixture();
    let mut slabs = Slabs::new(&mut Room::system(), &arena, classes.count(), Growth::Slab).unwrap();
    let units = carve_all(&mut slabs, &arena, &classes, 1);
    let per_slab = classes.geometry(1).chunks_per_slab as usize;
    // Two of the first slab, three of the second, one of the fourth.
    let at = |slab: usize, chunk: usize| units[slab * per_slab + chunk];
    let stored = [at(0, 3), at(0, 7), at(1, 0), at(1, 1), at(1, 9), at(3, 5)];
    slabs.store(&arena, 1, &stored);
    let mut out = [0; 5];
    let carved = slabs.carve(&arena, &classes, 1, &mut out).unwrap();
    assert_eq!((carved.chunks, carved.new_slab), (5, false));
    assert_eq!(out, stored[..5]);
    assert_eq!(slabs.class(1).stored, 1);
    let carved = slabs.carve(&arena, &classes, 1, &mut out).unwrap();
    assert_eq!((carved.chunks, out[0]), (1, stored[5]));
    assert_eq!(slabs.class(1).stored, 0);
    assert_eq!(slabs.class(1).out(), units.len() as u64);
}
