//! The Reed-Solomon code: parity is a matrix times data, over the field of 256 elements.
//!
//! The matrix is that of klauspost/reedsolomon, and so of kcp-go: Vandermonde's, made systematic. The crate used
//! here has the same one; encoding the unit vectors reveals it. Recovery does not use the crate's `reconstruct`,
//! which allocates. Any square part of the matrix can be inverted, which is why any `data` shards of a group are
//! enough.

use super::FecShards;
use core::fmt;
use reed_solomon_erasure::galois_8::{self, ReedSolomon};

pub(in crate::rudp) struct Code {
    pub(in crate::rudp) shards: FecShards,
    /// Row by row: a row for each parity shard, a column for each data shard.
    matrix: Box<[u8]>,
}

/// Without the matrix, which may have 16 thousand numbers.
impl fmt::Debug for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Code").field(&self.shards).finish()
    }
}

impl Code {
    pub(in crate::rudp) fn new(shards: FecShards) -> Self {
        let (data, parity) = (shards.data(), shards.parity());
        let code = ReedSolomon::new(data, parity).expect("shard counts were checked");
        let mut unit = vec![vec![0; data]; data];
        for (at, row) in unit.iter_mut().enumerate() {
            row[at] = 1;
        }
        let mut rows = vec![vec![0; data]; parity];
        code.encode_sep(&unit, &mut rows)
            .expect("as many shards as the code has, all of one length");
        Self {
            shards,
            matrix: rows.concat().into_boxed_slice(),
        }
    }

    pub(super) fn coefficient(&self, parity: usize, data: usize) -> u8 {
        self.matrix[parity * self.shards.data() + data]
    }

    /// Adds the contribution of data shard `data` to parity shard `parity`, which is no shorter. Addition is its
    /// own inverse here: adding it again removes it.
    pub(super) fn add(&self, parity: usize, data: usize, from: &[u8], to: &mut [u8]) {
        add_multiple(self.coefficient(parity, data), from, to);
    }
}

/// Adds `factor` times `from` to the front of `to`, which is no shorter.
pub(super) fn add_multiple(factor: u8, from: &[u8], to: &mut [u8]) {
    galois_8::mul_slice_xor(factor, from, &mut to[..from.len()]);
}

/// Inverts the `n` by `n` matrix in `matrix` into `inverse`, which is as long; `matrix` has no useful contents then. It
/// has to be a part of a code's matrix: as each square part of that can be inverted, no pivot is zero, and rows need
/// not be exchanged.
pub(super) fn invert(matrix: &mut [u8], inverse: &mut [u8], n: usize) {
    inverse.fill(0);
    for at in 0..n {
        inverse[at * n + at] = 1;
    }
    for column in 0..n {
        let factor = galois_8::div(1, matrix[column * n + column]);
        for matrix in [&mut *matrix, &mut *inverse] {
            for cell in &mut matrix[column * n..][..n] {
                *cell = galois_8::mul(*cell, factor);
            }
        }
        for row in (0..n).filter(|&row| row != column) {
            let factor = matrix[row * n + column];
            for matrix in [&mut *matrix, &mut *inverse] {
                for at in 0..n {
                    let less = galois_8::mul(matrix[column * n + at], factor);
                    matrix[row * n + at] ^= less;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From klauspost/reedsolomon v1.12.0: `New(10, 3)` and `Encode` of the unit vectors.
    #[test]
    fn the_matrix_is_that_of_kcp_go() {
        let code = Code::new(FecShards::new(10, 3).unwrap());
        let rows = [
            [129, 150, 175, 184, 210, 196, 254, 232, 3, 2],
            [150, 129, 184, 175, 196, 210, 232, 254, 2, 3],
            [191, 214, 98, 10, 6, 111, 223, 183, 5, 4],
        ];
        assert_eq!(code.matrix[..], rows.concat()[..]);
    }

    #[test]
    fn a_matrix_times_its_inverse_is_one() {
        for n in [1, 2, 20, 128] {
            let code = Code::new(FecShards::new(n, n).unwrap());
            let mut matrix = code.matrix.to_vec();
            let mut inverse = vec![0; n * n];
            invert(&mut matrix, &mut inverse, n);
            for row in 0..n {
                for column in 0..n {
                    let sum = (0..n).fold(0, |sum, at| {
                        sum ^ galois_8::mul(code.matrix[row * n + at], inverse[at * n + column])
                    });
                    assert_eq!(sum, u8::from(row == column));
                }
            }
        }
    }
}
