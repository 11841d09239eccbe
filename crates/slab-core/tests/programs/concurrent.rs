//! Programs that run at once. The model is shared: a chunk enters it after it was handed out and
//! leaves it before it is freed, so if two threads ever have the same memory it complains.

use crate::machine::{base_of, new_model, pool};
use crate::model::{Model, Queue};
use proptest::prelude::*;
use slab_core::{AllocError, Chunk, SlabPool};
use std::sync::{Barrier, Mutex, mpsc};
use std::thread;

/// One thread's program: what to do with which size.
#[derive(Debug, Clone)]
struct Script(Vec<(u8, u8)>);

/// Chunks change hands through here, so that many are freed far from where they were allocated.
type Handover = (mpsc::Sender<Chunk>, Mutex<mpsc::Receiver<Chunk>>);

fn run_script(pool: &SlabPool, model: &Mutex<Model>, handover: &Handover, script: &Script) {
    let sizes = pool.size_classes().sizes();
    let mut held: Vec<Chunk> = Vec::new();
    let free = |chunk: Chunk| {
        model.lock().unwrap().leave(chunk.as_ptr());
        drop(chunk);
    };
    for &(what, operand) in &script.0 {
        match what % 16 {
            0..=6 => {
                let class = usize::from(operand) % sizes.len();
                match pool.try_alloc(sizes[class]) {
                    Ok(chunk) => {
                        model.lock().unwrap().enter_chunk(&chunk);
                        held.push(chunk);
                    }
                    Err(AllocError::Exhausted { .. }) => model.lock().unwrap().count_refusal(class),
                    Err(error) => panic!("{error}"),
                }
            }
            7..=9 => {
                if !held.is_empty() {
                    free(held.swap_remove(usize::from(operand) % held.len()));
                }
            }
            10 => held.drain(..held.len() / 2).for_each(free),
            11 => held
                .drain(..)
                .for_each(|chunk| handover.0.send(chunk).unwrap()),
            12 => {
                let other = handover.1.lock().unwrap().try_recv();
                other.into_iter().for_each(free);
            }
            13 => pool.flush_thread_cache(),
            14 => {
                let stats = pool.stats();
                assert!(stats.committed_bytes <= stats.max_memory);
                // Of whatever moments the parts of a snapshot are, they add up.
                for class in stats.classes() {
                    let places = class.in_magazines + class.in_depot + class.in_slabs;
                    assert_eq!(class.in_use + places, class.committed_chunks);
                }
            }
            _ => drop(pool.trim()),
        }
    }
    held.drain(..).for_each(free);
}

fn run(choice: u8, scripts: &[Script]) {
    let pool = pool(choice);
    let base = base_of(&pool);
    let mut model = new_model(choice, &pool, base);
    model.allow_concurrent_threads(scripts.len());
    let model = Mutex::new(model);
    let (send, receive) = mpsc::channel();
    let handover = (send, Mutex::new(receive));
    let start = Barrier::new(scripts.len());
    thread::scope(|scope| {
        let act = |script| {
            start.wait();
            run_script(&pool, &model, &handover, script);
        };
        let threads: Vec<_> = scripts
            .iter()
            .map(|script| scope.spawn(move || act(script)))
            .collect();
        // The end of the scope alone does not wait for the destructors of thread-locals.
        threads.into_iter().for_each(|one| one.join().unwrap());
    });
    let mut model = model.into_inner().unwrap();
    for chunk in handover.1.into_inner().unwrap().try_iter() {
        model.leave(chunk.as_ptr());
    }
    let none = vec![Queue::default(); pool.size_classes().sizes().len()];
    model.check_stats(&pool.stats(), &none);
    pool.trim();
    let stats = pool.stats();
    assert_eq!(stats.in_use(), 0);
    if model.share.is_none() {
        assert_eq!(stats.committed_bytes, 0);
    }
    model.check_stats(&stats, &none);
}

fn scripts() -> impl Strategy<Value = Vec<Script>> {
    let longest = if cfg!(miri) { 20 } else { 2000 };
    let script = prop::collection::vec(any::<(u8, u8)>(), 1..longest).prop_map(Script);
    prop::collection::vec(script, 2..4)
}

proptest! {
    #![proptest_config(crate::config())]

    #[test]
    fn concurrent_programs_never_share_a_chunk(choice in 0u8..32, scripts in scripts()) {
        run(choice, &scripts);
    }
}
