//! [`this_process`]: a number that tells a process from those that it was forked from.
//!
//! Its id does not: a child may have the id of a process that has exited, or that is in another PID namespace. So
//! the number is random, and lies in memory that the system clears in the child of a fork (`MADV_WIPEONFORK`, Linux
//! 4.14; BoringSSL's and AWS-LC's random numbers rely on the same).

use core::sync::atomic::{AtomicU64, Ordering};
use ring::error::Unspecified;
use ring::rand::{SecureRandom, SystemRandom};

/// Returns a number other than 0, the same for as long as the process lives, and no other's; the process id where the
/// system clears no memory. Has no lock, as the child of a fork would find it held for ever.
#[inline]
pub(super) fn this_process() -> Result<u64, Unspecified> {
    let Some(number) = wiped::number() else {
        return Ok(std::process::id().into());
    };
    // Relaxed: it says nothing about other memory.
    match number.load(Ordering::Relaxed) {
        0 => draw(number),
        number => Ok(number),
    }
}

#[cold]
fn draw(number: &AtomicU64) -> Result<u64, Unspecified> {
    let mut bytes = [0; size_of::<u64>()];
    SystemRandom::new().fill(&mut bytes)?;
    let drawn = u64::from_le_bytes(bytes) | 1;
    let stored = number.compare_exchange(0, drawn, Ordering::Relaxed, Ordering::Relaxed);
    Ok(stored.err().unwrap_or(drawn))
}

#[cfg(all(target_os = "linux", not(miri)))]
mod wiped {
    use core::ptr;
    use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

    /// Not a kind of advice: Linux refuses it.
    const NO_ADVICE: libc::c_int = -1;

    /// The mapping; null until one is asked for.
    static PAGE: AtomicPtr<AtomicU64> = AtomicPtr::new(ptr::null_mut());
    /// Is there instead of one that the system refuses.
    static REFUSED: AtomicU64 = AtomicU64::new(0);

    #[inline]
    pub(super) fn number() -> Option<&'static AtomicU64> {
        // Acquire: the mapping was cleared when it was made.
        let page = match PAGE.load(Ordering::Acquire) {
            page if page.is_null() => init(),
            page => page,
        };
        // SAFETY: it is `REFUSED` or a mapping, which begins with zeros and stays mapped; all access is atomic.
        let number = unsafe { &*page };
        (!ptr::eq(number, &raw const REFUSED)).then_some(number)
    }

    #[cold]
    fn init() -> *mut AtomicU64 {
        let page = map().unwrap_or((&raw const REFUSED).cast_mut());
        let (success, failure) = (Ordering::AcqRel, Ordering::Acquire);
        match PAGE.compare_exchange(ptr::null_mut(), page, success, failure) {
            Ok(_) => page,
            // Another thread was first. What was mapped here stays: it happens once.
            Err(first) => first,
        }
    }

    fn map() -> Option<*mut AtomicU64> {
        let len = size_of::<AtomicU64>();
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: maps new memory.
        let page = unsafe { libc::mmap(ptr::null_mut(), len, access, flags, -1, 0) };
        if page == libc::MAP_FAILED {
            return None;
        }
        // SAFETY: nothing else uses the mapping.
        let advise = |advice| unsafe { libc::madvise(page, len, advice) } == 0;
        // An emulator may take any advice and heed none, as QEMU's user mode did in 2020.
        if advise(NO_ADVICE) || !advise(libc::MADV_WIPEONFORK) {
            // SAFETY: as above.
            unsafe { libc::munmap(page, len) };
            return None;
        }
        Some(page.cast())
    }
}

#[cfg(not(all(target_os = "linux", not(miri))))]
mod wiped {
    pub(super) fn number() -> Option<&'static core::sync::atomic::AtomicU64> {
        None
    }
}

#[cfg(all(test, target_os = "linux", not(miri)))]
mod tests {
    use super::this_process;
    use super::wiped::number;
    use std::io::{self, Read, Write};

    #[test]
    fn all_threads_are_of_one_process() {
        let numbers = [(); 4].map(|()| std::thread::spawn(|| this_process().unwrap()));
        let ours = this_process().unwrap();
        assert_ne!(ours, 0);
        for number in numbers {
            assert_eq!(number.join().unwrap(), ours);
        }
    }

    /// Runs this in the child of a fork, which then ends.
    #[allow(unsafe_code)]
    fn in_child(run: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        // SAFETY: the child makes system calls and uses atomics alone, does not panic, and exits.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let code = i32::from(run().is_err());
            // SAFETY: `_exit` only ends the process.
            unsafe { libc::_exit(code) };
        }
        let mut status = -1;
        // SAFETY: `status` is valid for the call's write.
        match unsafe { libc::waitpid(child, &raw mut status, 0) } {
            ended if ended == child && status == 0 => Ok(()),
            _ => Err(io::ErrorKind::Other.into()),
        }
    }

    /// Also where the ids are the same: each is the first process of its PID namespace.
    #[test]
    #[allow(unsafe_code)]
    fn children_have_numbers_of_their_own_whatever_their_ids() {
        let (mut reader, mut writer) = io::pipe().unwrap();
        let report = |writer: &mut io::PipeWriter| {
            let [number, again] = [(); 2].map(|()| this_process());
            let number = number.map_err(|_| io::ErrorKind::Other)?;
            if again.ok() != Some(number) {
                return Err(io::ErrorKind::Other.into());
            }
            writer.write_all(&number.to_le_bytes())?;
            writer.write_all(&u64::from(std::process::id()).to_le_bytes())
        };
        // SAFETY: concerns only children of this process, which has one thread.
        let own_namespace = |flags| unsafe { libc::unshare(flags | libc::CLONE_NEWPID) } == 0;
        report(&mut writer).unwrap();
        let reported = in_child(|| {
            let permitted =
                number().is_some() && (own_namespace(0) || own_namespace(libc::CLONE_NEWUSER));
            in_child(|| {
                report(&mut writer)?;
                let permitted = permitted && own_namespace(0);
                in_child(|| {
                    report(&mut writer)?;
                    writer.write_all(&[permitted.into()])
                })
            })
        });
        reported.unwrap();
        drop(writer);
        let mut word = || {
            let mut word = [0; size_of::<u64>()];
            reader.read_exact(&mut word).unwrap();
            u64::from_le_bytes(word)
        };
        let [ours, child, grandchild] = [(); 3].map(|()| (word(), word()));
        let mut permitted = [0];
        reader.read_exact(&mut permitted).unwrap();
        assert_ne!(ours.0, child.0);
        assert_ne!(ours.0, grandchild.0);
        assert_ne!(child.0, grandchild.0);
        match permitted {
            [0] => {
                let skipped = "all ids differ: no PID namespaces here, or no MADV_WIPEONFORK";
                assert!(std::env::var_os("SLAB_NET_NO_SKIP").is_none(), "{skipped}");
                // Not `eprintln!`, whose output the test harness captures.
                let _ = writeln!(io::stderr(), "skipped: {skipped}");
            }
            _ => assert_eq!([child.1, grandchild.1], [1, 1]),
        }
        assert_eq!(ours.0, this_process().unwrap());
    }
}
