//! What happened in all programs: a test that reaches nothing finds nothing.

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        #[derive(Debug, Default, Clone, Copy)]
        pub(crate) struct Coverage {
            $($(#[$doc])* pub(crate) $name: u64,)*
        }

        impl Coverage {
            pub(crate) fn add(&mut self, other: &Self) {
                $(self.$name += other.$name;)*
            }

            /// What never happened.
            pub(crate) fn missed(&self) -> Vec<&'static str> {
                let all = [$((stringify!($name), self.$name)),*];
                let missed = all.into_iter().filter(|&(_, count)| count == 0);
                missed.map(|(name, _)| name).collect()
            }
        }
    };
}

counters! {
    sessions,
    messages,
    ends,
    cancelled,
    /// Calls that went from one task to another.
    moved,
    /// Writes that failed for lack of memory, were refused, took a part, or waited.
    no_memory,
    blocked,
    short_writes,
    waited_to_write,
    /// Readers that waited for memory for a message.
    memory_waits,
    datagrams,
    closed,
    aborted,
    dropped,
    delivered,
    /// Segments without memory, windows without memory to grow.
    segments_dropped,
    window_refused,
    cookies,
    recovered,
    /// The path was cut, the server begun anew, and a session that had begun before accepted there.
    cuts,
    restarts,
    accepted_again,
    /// Sessions that ended for want of an answer, or by a peer that knew nothing of them.
    timed_out,
    reset,
}
