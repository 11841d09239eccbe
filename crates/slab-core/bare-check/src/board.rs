//! What the two machines do differently: how they begin, how they print and how they end. The emulator has filled all
//! memory with zeros, so nothing clears the bss. ARM runs without an MMU.

use core::fmt::{self, Write};

#[cfg(target_arch = "riscv64")]
core::arch::global_asm!(
    ".section .start, \"ax\"",
    ".global _start",
    "_start:",
    "li t0, 0x2000", // Floating point: `mstatus.FS`.
    "csrs mstatus, t0",
    "csrr a0, mhartid",
    "la sp, first_stack",
    "beqz a0, 1f",
    "la sp, second_stack",
    "1: call begin",
);
#[cfg(target_arch = "aarch64")]
core::arch::global_asm!(
    ".section .start, \"ax\"",
    ".global _start",
    "_start:", // The second processor waits for the firmware's call, with its number for an argument.
    "ldr x0, =0xC4000003",
    "mov x1, #1",
    "adr x2, 1f",
    "mov x3, #1",
    "hvc #0",
    "mov x0, #0",
    "adrp x1, first_stack",
    "b 2f",
    "1: adrp x1, second_stack",
    "2: mov sp, x1",
    "mov x1, #0x300000", // Floating point: `CPACR_EL1.FPEN`.
    "msr cpacr_el1, x1",
    "isb",
    "bl begin",
);

/// The serial port.
pub struct Port;

impl Write for Port {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let riscv = cfg!(target_arch = "riscv64");
        let port = if riscv { 0x1000_0000 } else { 0x0900_0000 } as *mut u8;
        // SAFETY: the port's register for data, on both machines.
        text.bytes()
            .for_each(|byte| unsafe { port.write_volatile(byte) });
        Ok(())
    }
}

/// Ends the emulator.
pub fn exit(code: u32) -> ! {
    #[cfg(target_arch = "riscv64")]
    // SAFETY: the register of the device for tests: 0x5555 is a success, 0x3333 a failure with its code above.
    unsafe {
        let how = if code == 0 {
            0x5555
        } else {
            code << 16 | 0x3333
        };
        (0x10_0000 as *mut u32).write_volatile(how);
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a call of the emulator: `SYS_EXIT`, of an application, with its code.
    unsafe {
        let how = [0x20026, u64::from(code)];
        core::arch::asm!("hlt #0xf000", in("x0") 0x18, in("x1") &how);
    }
    unreachable!("the emulator has ended")
}

#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    let _ = writeln!(Port, "{info}");
    exit(1)
}
