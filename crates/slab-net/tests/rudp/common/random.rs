//! What a seed decides: random numbers, and the contents of messages.

/// SplitMix64.
#[derive(Clone)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }

    pub(crate) fn chance(&mut self, per_mille: u64) -> bool {
        self.below(1000) < per_mille
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

/// The seeds to run: one from `RUDP_SEED`, as many as `RUDP_SEEDS` says, otherwise `default`.
pub(crate) fn seeds(default: u64) -> std::ops::Range<u64> {
    let number = |name: &str| std::env::var(name).ok().and_then(|v| v.parse::<u64>().ok());
    if let Some(seed) = number("RUDP_SEED") {
        return seed..seed + 1;
    }
    0..number("RUDP_SEEDS").unwrap_or(default)
}

/// The byte at `at` of message number `message` from side `from`.
pub(crate) fn byte(from: usize, message: u32, at: usize) -> u8 {
    let x = (from as u64 + 1) * 1_000_003 + u64::from(message) * 7919 + at as u64 * 31;
    (x ^ (x >> 8)) as u8
}

pub(crate) fn length(seed: u64, from: usize, message: u32, longest: u64) -> usize {
    let mut random = Random::new(seed ^ (u64::from(message) << 8) ^ from as u64);
    let longest = if random.chance(700) {
        longest.min(600)
    } else {
        longest
    };
    1 + random.below(longest) as usize
}

pub(crate) fn message(seed: u64, from: usize, number: u32, longest: u64) -> Vec<u8> {
    let len = length(seed, from, number, longest);
    (0..len).map(|at| byte(from, number, at)).collect()
}
