//! Anonymous memory by `mmap`, and `membarrier` where the kernel has it.

use super::ENOMEM;
#[cfg(target_os = "linux")]
use super::RELEASE_MAX;
use super::room::TABLE_ALIGN;
use alloc::alloc::{alloc_zeroed, dealloc};
#[cfg(target_os = "linux")]
use arrayvec::ArrayVec;
use core::alloc::Layout;
use core::ffi::c_void;
use core::ops::Range;
use core::ptr::{NonNull, null_mut};
use rustix::io::Errno;
#[cfg(target_os = "linux")]
use rustix::mm::{Advice, madvise};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mlock, mmap_anonymous, mprotect, munmap};

/// The smallest page there is: touching more often than needed does no harm.
const PAGE: usize = 4096;

/// The most memory that the system may give at once when one page is touched; it lies at a multiple of
/// this. (It can be more where pages are larger than 4 KiB.)
pub(crate) const HUGE_PAGE: usize = if cfg!(target_os = "linux") {
    2 << 20
} else {
    PAGE
};

/// An anonymous mapping, unmapped on drop; or a small piece of the heap, freed on drop.
#[derive(Debug)]
pub(crate) struct Region {
    base: NonNull<u8>,
    bytes: usize,
    /// Where it came from the heap.
    of_heap: Option<Layout>,
}

// SAFETY: a region is an address range, usable from any thread; what is shared inside it is
// synchronised by the code that hands out its parts.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Address space only: nothing may be touched before [`commit`](Self::commit).
    pub(crate) fn reserved(bytes: usize) -> Result<Self, i32> {
        Self::map(bytes, ProtFlags::empty())
    }

    /// Zeroed memory, of which a page costs nothing until it is touched: no huge ones, where the system would give those
    /// unasked.
    ///
    /// What is no more than a page comes from the heap: of the system it would take a whole one, and three calls to have
    /// it and to give it back. A pool has several tables that are so short.
    pub(crate) fn committed(bytes: usize) -> Result<Self, i32> {
        if bytes <= PAGE {
            return Self::of_heap(bytes);
        }
        let region = Self::map(bytes, ProtFlags::READ | ProtFlags::WRITE)?;
        #[cfg(target_os = "linux")]
        // SAFETY: an advice about our own new mapping, which an error leaves as it is.
        let _ = unsafe { madvise(region.base.as_ptr().cast(), bytes, Advice::LinuxNoHugepage) };
        Ok(region)
    }

    fn map(bytes: usize, protection: ProtFlags) -> Result<Self, i32> {
        super::fault_injection::check()?;
        // SAFETY: a new private mapping at an address of the kernel's choice aliases nothing.
        let base = unsafe {
            mmap_anonymous(
                null_mut(),
                bytes,
                protection,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }
        .map_err(Errno::raw_os_error)?;
        let base = NonNull::new(base.cast::<u8>()).expect("mmap gives no null without MAP_FIXED");
        Ok(Self {
            base,
            bytes,
            of_heap: None,
        })
    }

    fn of_heap(bytes: usize) -> Result<Self, i32> {
        super::fault_injection::check()?;
        assert_ne!(bytes, 0, "a region is never empty");
        let layout = Layout::from_size_align(bytes, TABLE_ALIGN).map_err(|_| ENOMEM)?;
        // SAFETY: the layout is not empty, as just asserted.
        let base = unsafe { alloc_zeroed(layout) };
        let base = NonNull::new(base).ok_or(ENOMEM)?;
        Ok(Self {
            base,
            bytes,
            of_heap: Some(layout),
        })
    }

    /// The first byte of the range.
    #[inline]
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Makes part of a reserved range usable; it reads as zeros.
    pub(crate) fn commit(&self, offset: usize, bytes: usize) -> Result<(), i32> {
        super::fault_injection::check()?;
        let at = self.part(offset, bytes);
        // SAFETY: the part lies in this mapping, and read-write takes nothing from anyone.
        unsafe { mprotect(at, bytes, MprotectFlags::READ | MprotectFlags::WRITE) }
            .map_err(Errno::raw_os_error)
    }

    /// Gives the memory behind committed parts, at most [`RELEASE_MAX`], back to the system. They stay
    /// usable and read as zeros.
    /// `false` if the system does not take it (a process may have locked all of its memory
    /// by `mlockall`): each byte then is what it was, or zero.
    ///
    /// # Safety
    /// The parts are committed, and nobody uses them until this returns.
    pub(crate) unsafe fn release(&self, parts: &[Range<usize>]) -> bool {
        if super::fault_injection::check().is_err() {
            return false;
        }
        // SAFETY: the caller's promise.
        if parts.len() > 1 && unsafe { self.release_at_once(parts) } {
            return true;
        }
        // SAFETY: the caller's promise, of each.
        parts.iter().all(|part| unsafe { self.release_one(part) })
    }

    /// Gives back parts by one call of the system, which then flushes what processors remember of them once, and not for
    /// each: two to three times as fast where they are of some five pages. `false` if Linux does not take all of them:
    /// an older one (6.18 does) does not know a process by `PIDFD_SELF`.
    ///
    /// # Safety
    /// As [`release`](Self::release).
    #[cfg(target_os = "linux")]
    unsafe fn release_at_once(&self, parts: &[Range<usize>]) -> bool {
        /// This process, where the system asks for a descriptor of one (`linux/pidfd.h`).
        const PIDFD_SELF: libc::c_int = -10_000;
        let vector = |part: &Range<usize>| libc::iovec {
            iov_base: self.part(part.start, part.len()),
            iov_len: part.len(),
        };
        let vectors: ArrayVec<_, RELEASE_MAX> = parts.iter().map(vector).collect();
        // SAFETY: the parts lie in this mapping; by this function's contract no one relies on
        // their contents, and they stay mapped. The vectors outlive the call.
        let released = unsafe {
            libc::syscall(
                libc::SYS_process_madvise,
                PIDFD_SELF,
                vectors.as_ptr(),
                vectors.len(),
                libc::MADV_DONTNEED,
                0_u32,
            )
        };
        // Up to the first that it does not take.
        usize::try_from(released) == Ok(parts.iter().map(ExactSizeIterator::len).sum())
    }

    #[cfg(not(target_os = "linux"))]
    unsafe fn release_at_once(&self, _parts: &[Range<usize>]) -> bool {
        false
    }

    /// # Safety
    /// As [`release`](Self::release).
    unsafe fn release_one(&self, part: &Range<usize>) -> bool {
        let at = self.part(part.start, part.len());
        #[cfg(target_os = "linux")]
        // SAFETY: the part lies in this mapping; by this function's contract no one relies on
        // its contents, and it stays mapped.
        let released = unsafe { madvise(at, part.len(), Advice::LinuxDontNeed) };
        // Elsewhere that advice need not make zeros; a new mapping in the place of the old one does.
        #[cfg(not(target_os = "linux"))]
        let released = {
            let protection = ProtFlags::READ | ProtFlags::WRITE;
            let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
            // SAFETY: the part lies in this mapping, and nobody relies on its contents.
            unsafe { mmap_anonymous(at, part.len(), protection, flags) }
        };
        released.is_ok()
    }

    /// Backs a committed part with memory; locks it there if asked.
    pub(crate) fn populate(&self, offset: usize, bytes: usize, lock: bool) -> Result<(), i32> {
        let at = self.part(offset, bytes);
        super::fault_injection::check()?;
        if lock {
            // SAFETY: locking the pages of our own mapping changes nothing about their contents.
            return unsafe { mlock(at, bytes) }.map_err(Errno::raw_os_error);
        }
        // In two thirds of the time that touching takes; and what the system refuses is an error.
        #[cfg(target_os = "linux")]
        // SAFETY: the part is committed; the advice changes nothing about its contents.
        match unsafe { madvise(at, bytes, Advice::LinuxPopulateWrite) } {
            // Linux is older than 5.14; or was built without advice, or is told by a filter to take none (seccomp).
            Err(Errno::INVAL | Errno::NOSYS | Errno::PERM) => {}
            done => return done.map_err(Errno::raw_os_error),
        }
        for offset in (offset..offset + bytes).step_by(PAGE) {
            let at = self.part(offset, 1).cast::<u8>();
            // SAFETY: a byte of the committed mapping, which nobody else knows yet. Volatile, so
            // that the write of the zero that is there already takes place.
            unsafe { at.write_volatile(0) };
        }
        Ok(())
    }

    /// Asks for huge pages.
    pub(crate) fn advise_huge_pages(&self) {
        #[cfg(target_os = "linux")]
        // SAFETY: an advice about our own mapping; it changes nothing about its contents. The only
        // error is a kernel without huge pages, and then there are none.
        let _ = unsafe { madvise(self.base.as_ptr().cast(), self.bytes, Advice::LinuxHugepage) };
    }

    /// How many bytes of the first `bytes`, which are committed, are in memory now; `None` if the
    /// system does not say.
    #[cfg(target_os = "linux")]
    pub(crate) fn resident(&self, bytes: usize) -> Option<usize> {
        // A byte a page; as many at a time as fit on a stack.
        const PAGES: usize = 2048;
        let page = rustix::param::page_size();
        let mut map = [0u8; PAGES];
        let mut resident = 0;
        for offset in (0..bytes).step_by(PAGES * page) {
            let len = (bytes - offset).min(PAGES * page);
            let at = self.part(offset, len);
            // SAFETY: the part is mapped, and `map` has a byte for each of its pages.
            if unsafe { libc::mincore(at, len, map.as_mut_ptr()) } != 0 {
                return None;
            }
            let pages = &map[..len.div_ceil(page)];
            resident += pages.iter().filter(|&&state| state & 1 != 0).count() * page;
        }
        Some(resident.min(bytes))
    }

    /// The system is not asked.
    #[cfg(not(target_os = "linux"))]
    pub(crate) fn resident(&self, _bytes: usize) -> Option<usize> {
        None
    }

    fn part(&self, offset: usize, bytes: usize) -> *mut c_void {
        assert!(offset <= self.bytes && bytes <= self.bytes - offset);
        // SAFETY: just checked to lie within the mapping.
        unsafe { self.base.add(offset) }.as_ptr().cast()
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if let Some(layout) = self.of_heap {
            // SAFETY: allocated in `of_heap` with this layout; the owner is gone, so are all users.
            unsafe { dealloc(self.base.as_ptr(), layout) };
            return;
        }
        super::asan::unpoison(self.base, self.bytes);
        // SAFETY: exactly the range that `map` mapped; the owner is gone, so are all users.
        // An error is impossible for a whole mapping of our own, and drop could not report it.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

/// The system's pages, in bytes.
pub(crate) fn page_size() -> usize {
    rustix::param::page_size()
}

/// Is `membarrier(PRIVATE_EXPEDITED)` available? Registers the process on the first call.
#[cfg(target_os = "linux")]
pub(crate) fn has_membarrier() -> bool {
    use rustix::thread::{MembarrierCommand, membarrier, membarrier_query};
    static REGISTERED: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    *REGISTERED.get_or_init(|| {
        membarrier_query().contains_command(MembarrierCommand::PrivateExpedited)
            && membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok()
    })
}

/// Makes every running thread of the process execute a full memory barrier.
#[cfg(target_os = "linux")]
pub(crate) fn membarrier() {
    use rustix::thread::{MembarrierCommand, membarrier};
    membarrier(MembarrierCommand::PrivateExpedited)
        .expect("a registered process can always issue membarrier");
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn has_membarrier() -> bool {
    false
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn membarrier() {}
