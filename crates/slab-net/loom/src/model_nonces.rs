//! Two threads of one process, which draw the first nonces with a key.

use crate::model::explore;
use crate::nonces::Nonces;
use loom::thread;
use std::sync::Arc;

/// Whoever goes on with a run that another thread has begun knows where it begins: a nonce that counts
/// from zero would be drawn by every endpoint with this key.
#[test]
fn nobody_draws_from_a_run_that_has_not_begun() {
    explore(None, || {
        let nonces = Arc::new(Nonces::default());
        let draw = |nonces: &Nonces| {
            nonces.begin_own_run().unwrap();
            nonces.draw()
        };
        let other = {
            let nonces = Arc::clone(&nonces);
            thread::spawn(move || draw(&nonces))
        };
        let drawn = [draw(&nonces), other.join().unwrap()];
        assert_ne!(drawn[0], drawn[1]);
        assert!(drawn.iter().all(|nonce| !nonce.contains(&0)), "{drawn:?}");
    });
}
