//! What a program's futures are, and what the model says of them.

use crate::model::{Item, Offered, Queue};
use crate::programs::Woken;
use slab_net::udp::PacketBatch;
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;

/// What a future waits for, and the batches that it holds.
#[derive(Clone, Debug)]
pub(crate) enum Kind {
    Send(usize, Item),
    SendMany {
        rest: VecDeque<(usize, Item)>,
        is_flow: bool,
        ok: bool,
    },
    Recv(usize),
    RecvMany(usize, usize),
    Closed,
}

/// The result of a poll, in the model.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Pending,
    Panicked,
    Sent(bool),
    Got(Vec<Item>),
    Closed,
}

pub(crate) enum Output {
    Sent(bool),
    Got(Vec<PacketBatch>),
    Closed,
}

impl Kind {
    /// Does as much as there is room, or as many batches, for.
    pub(crate) fn look(&mut self, queues: &mut [Queue], is_first: bool) -> Outcome {
        match self {
            Self::Send(queue, item) => match queues[*queue].offer(*item) {
                Offered::Done => Outcome::Sent(true),
                Offered::NoRoom => Outcome::Pending,
                Offered::Panicked => Outcome::Panicked,
                Offered::Closed => {
                    queues[*queue].refuse(*item);
                    Outcome::Sent(false)
                }
            },
            Self::SendMany { rest, is_flow, ok } => {
                if !*is_flow && is_first && queues[0].receivers == 0 {
                    self.cancel(queues);
                    return Outcome::Sent(false);
                }
                while let Some(&(queue, item)) = rest.front() {
                    match queues[queue].offer(item) {
                        Offered::Done => {}
                        Offered::NoRoom => return Outcome::Pending,
                        Offered::Panicked => {
                            rest.pop_front();
                            self.cancel(queues);
                            return Outcome::Panicked;
                        }
                        Offered::Closed => {
                            *ok = false;
                            if !*is_flow {
                                self.cancel(queues);
                                return Outcome::Sent(false);
                            }
                            queues[queue].refuse(item);
                        }
                    }
                    rest.pop_front();
                }
                Outcome::Sent(*ok)
            }
            Self::Recv(queue) => Self::receive(&mut queues[*queue], 1),
            Self::RecvMany(_, 0) => Outcome::Got(Vec::new()),
            Self::RecvMany(queue, limit) => Self::receive(&mut queues[*queue], *limit),
            Self::Closed if queues.iter().all(|queue| queue.receivers == 0) => Outcome::Closed,
            Self::Closed => Outcome::Pending,
        }
    }

    fn receive(queue: &mut Queue, limit: usize) -> Outcome {
        let items: Vec<Item> = std::iter::from_fn(|| queue.pop()).take(limit).collect();
        match items.is_empty() && queue.senders > 0 {
            true => Outcome::Pending,
            false => Outcome::Got(items),
        }
    }

    /// Counts what a dropped future holds.
    pub(crate) fn cancel(&mut self, queues: &mut [Queue]) {
        match self {
            Self::Send(queue, item) => queues[*queue].refuse(*item),
            Self::SendMany { rest, .. } => {
                for (queue, item) in rest.drain(..) {
                    queues[queue].refuse(item);
                }
            }
            Self::Recv(_) | Self::RecvMany(..) | Self::Closed => {}
        }
    }

    pub(crate) fn batches(&self) -> usize {
        match self {
            Self::Send(..) => 1,
            Self::SendMany { rest, .. } => rest.len(),
            Self::Recv(_) | Self::RecvMany(..) | Self::Closed => 0,
        }
    }

    /// Whether its first poll takes from tokio's budget, before anything else.
    pub(crate) fn takes_budget(&self) -> bool {
        matches!(
            self,
            Self::Send(..) | Self::SendMany { .. } | Self::Recv(_) | Self::RecvMany(_, 1..)
        )
    }
}

/// The clone of a handle that is dropped with the future that owns it.
#[derive(Clone, Copy)]
pub(crate) enum Owned {
    Nothing,
    Sender,
    Receiver(usize),
}

impl Owned {
    pub(crate) fn drop_in(self, queues: &mut [Queue]) {
        match self {
            Self::Nothing => {}
            Self::Sender => queues.iter_mut().for_each(|queue| queue.senders -= 1),
            Self::Receiver(at) => queues[at].drop_receiver(),
        }
    }
}

pub(crate) struct Waiting {
    pub(crate) future: Pin<Box<dyn Future<Output = Output>>>,
    pub(crate) kind: Kind,
    pub(crate) owned: Owned,
    /// Whether it has looked at the queue.
    pub(crate) has_looked: bool,
    pub(crate) woken: Arc<Woken>,
}
