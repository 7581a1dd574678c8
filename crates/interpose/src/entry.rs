//! The stub page: the entry of a call, the way back, and all `syscall` instructions of ours.
//!
//! ```text
//!  entry:  rax = number, rcx = address behind the call; everything else is the program's
//!
//!  stack:  program's rsp ─▶ ┌──────────────┐
//!                           │ red zone 128 │
//!                           │ flags        │
//!                           │ (alignment)  │
//!                           │ Frame        │ ◀─ rsp during the call
//!                           └──────────────┘
//! ```
//!
//! A system call preserves all registers but rax, rcx and r11. The code behind the entry is
//! compiled for baseline x86-64. It uses legacy SSE, which leaves the upper halves of the vector
//! registers as they are, and no x87. So the sixteen xmm registers are saved, and nothing else of
//! the vector state. A test disassembles the library to show this.
//!
//! A signal may interrupt the call in the stub page. Its frame goes below `Frame`, because rsp is
//! there. The kernel restarts the call at the same `syscall`. The unwind information leads an
//! unwinder (`pthread_cancel`) from the stub page to the call site.

use core::mem::{offset_of, size_of};

use crate::call::SystemCall;
use crate::calls::on_call;
use crate::deferral::defer;
use crate::frame::{Frame, Resume};
use crate::process::{PROCESS, Process};
use crate::serve::clock::LONG_CYCLES;
use crate::thread::{on_child, on_forked};

const _: () = assert!(size_of::<Frame>().is_multiple_of(16));
const _: () = assert!(size_of::<Resume>().is_multiple_of(16));
// The unwind information below has these two as bytes.
const _: () = assert!(offset_of!(Frame, stack_pointer) == 0x70);
const _: () = assert!(offset_of!(SystemCall, return_address) == 0x38);

core::arch::global_asm!(
    r#"
    .macro WARREN_LABEL name
    .globl \name
    .hidden \name
    .type \name, @function
    \name:
    .endm

    .macro WARREN_VECTORS op, base, at
    .irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15
    .ifc \op, save
        movups %xmm\n, \at + 16 * \n(\base)
    .else
        movups \at + 16 * \n(\base), %xmm\n
    .endif
    .endr
    .endm

    /* The six registers of arguments, from or to memory. */
    .macro WARREN_LOAD base, at
        movq \at + 0(\base), %rdi
        movq \at + 8(\base), %rsi
        movq \at + 16(\base), %rdx
        movq \at + 24(\base), %r10
        movq \at + 32(\base), %r8
        movq \at + 40(\base), %r9
    .endm
    .macro WARREN_STORE base, at
        movq %rdi, \at + 0(\base)
        movq %rsi, \at + 8(\base)
        movq %rdx, \at + 16(\base)
        movq %r10, \at + 24(\base)
        movq %r8, \at + 32(\base)
        movq %r9, \at + 40(\base)
    .endm

    /* The caller's rsp is at rsp + 0x70, and its rip at rsp + 0x38. */
    .macro WARREN_CFI_FRAME
        .cfi_escape 0x0f, 0x04, 0x77, 0xf0, 0x00, 0x06
        .cfi_escape 0x10, 0x10, 0x02, 0x77, 0x38
    .endm
    /* The same with one word pushed. */
    .macro WARREN_CFI_PUSHED
        .cfi_escape 0x0f, 0x04, 0x77, 0xf8, 0x00, 0x06
        .cfi_escape 0x10, 0x10, 0x03, 0x77, 0xc0, 0x00
    .endm
    .macro WARREN_FLAGS
        pushq {flags}(%rsp)
        WARREN_CFI_PUSHED
        popfq
        WARREN_CFI_FRAME
    .endm

    /* Restores the mask at `at` if it is held: rt_sigprocmask(SIG_SETMASK, at, 0, 8). */
    .macro WARREN_UNHOLD base, at, held
        cmpq $0, \held(\base)
        je 1f
        movl $2, %edi
        leaq \at(\base), %rsi
        xorl %edx, %edx
        movl $8, %r10d
        movl $14, %eax
        syscall
    1:
    .endm

    /* In the parent: the child is made. Changes rcx. */
    .macro WARREN_CHILD_MADE base, held
        movq \held(\base), %rcx
        shrq $1, %rcx
        lock subq %rcx, {process}+{children}(%rip)
    .endm

    .pushsection .text.warren_stub,"ax",@progbits
    .p2align 12
    WARREN_LABEL warren_stub_start

    .p2align 4
    WARREN_LABEL warren_entry
        .cfi_startproc
        .cfi_def_cfa 7, 0
        .cfi_register 16, 2
        movq %rsp, %r11
        .cfi_def_cfa 11, 0
        leaq -128(%rsp), %rsp
        pushfq
        andq $-16, %rsp
        subq ${frame}, %rsp
        movq %r11, {stack_pointer}(%rsp)
        movq %rcx, {return_address}(%rsp)
        WARREN_CFI_FRAME
        movq -136(%r11), %r11
        movq %r11, {flags}(%rsp)
        movq %rax, (%rsp)
        WARREN_STORE %rsp, 8
        WARREN_STORE %rsp, {kept}
        WARREN_VECTORS save, %rsp, {vectors}
        cld
        movq %rsp, %rdi
        call {on_call}
        WARREN_VECTORS load, %rsp, {vectors}
        cmpl $1, %eax
        ja 5f
        je 3f

        WARREN_FLAGS
        WARREN_LOAD %rsp, 8
        movq (%rsp), %rax
        syscall
        WARREN_LOAD %rsp, {kept}
        movq {return_address}(%rsp), %rcx
        .cfi_register 16, 2
        movq {stack_pointer}(%rsp), %rsp
        .cfi_def_cfa 7, 0
        jmp *%rcx

        /* The call is done. */
    3:  WARREN_CFI_FRAME
        WARREN_FLAGS
        WARREN_LOAD %rsp, {kept}
        movq {result}(%rsp), %rax
        movq {flags}(%rsp), %r11
        movq {return_address}(%rsp), %rcx
        .cfi_register 16, 2
        movq {stack_pointer}(%rsp), %rsp
        .cfi_def_cfa 7, 0
        jmp *%rcx

    5:  WARREN_CFI_FRAME
        cmpl $3, %eax
        je 6f
        ja 7f

        /* Next::Fork */
        WARREN_LOAD %rsp, 8
        movq (%rsp), %rax
        syscall
        movq %rax, {result}(%rsp)
        testq %rax, %rax
        jnz 1f
        movq %rsp, %rdi
        call {on_forked}
        WARREN_VECTORS load, %rsp, {vectors}
        jmp 2f
    1:  WARREN_CHILD_MADE %rsp, {held}
    2:  WARREN_UNHOLD %rsp, {mask}, {held}
        jmp 3b

        /* Next::Thread */
    6:  WARREN_LOAD %rsp, 8
        movq (%rsp), %rax
        syscall
        testq %rax, %rax
        jz 4f
        movq %rax, {result}(%rsp)
        movq {resume}(%rsp), %rcx
        lock subq %rcx, {process}+{vforks}(%rip)
        WARREN_CHILD_MADE %rsp, {held}
        WARREN_UNHOLD %rsp, {mask}, {held}
        jmp 3b
    4:
        .cfi_remember_state
        .cfi_undefined 16
        subq $256, %rsp
        WARREN_VECTORS save, %rsp, 0
        leaq 256(%rsp), %rdi
        call {on_child}
        WARREN_VECTORS load, %rsp, 0
        addq $256, %rsp
        WARREN_UNHOLD %rsp, {r_mask}, {r_held}
        WARREN_LOAD %rsp, {r_kept}
        movq {r_return}(%rsp), %rcx
        pushq {r_flags}(%rsp)
        popfq
        movl $0, %eax
        movq {r_stack}(%rsp), %rsp
        jmp *%rcx
        .cfi_restore_state

    7:  cmpl $5, %eax
        je 9f
        ja 10f

        /* Next::Vfork. Once the child has run, nothing below the program's rsp is left. */
        movq {resume}(%rsp), %r11
        movq %rbx, {r_rbx}(%r11)
        movq %r11, %rbx
        WARREN_LOAD %rsp, 8
        movq (%rsp), %rax
        syscall
        .cfi_undefined 16
        testq %rax, %rax
        jnz 8f
        movq %rbx, %rdi
        call {on_child}
        WARREN_VECTORS load, %rsp, {vectors}
        xorl %eax, %eax
    8:  movq {r_stack}(%rbx), %rsp
        leaq -128(%rsp), %rsp
        pushq {r_flags}(%rbx)
        pushq %rax
        testq %rax, %rax
        jz 1f
        WARREN_CHILD_MADE %rbx, {r_held}
        /* A handler of the parent may run from here on. What the child had is not the parent's. */
        lock decq {process}+{vforks}(%rip)
    1:  WARREN_UNHOLD %rbx, {r_mask}, {r_held}
        popq %rax
        WARREN_LOAD %rbx, {r_kept}
        movq {r_return}(%rbx), %rcx
        movq {r_rbx}(%rbx), %r11
        testq %rax, %rax
        jz 4f
        movq $0, {r_busy}(%rbx)
    4:  movq %r11, %rbx
        popfq
        leaq 128(%rsp), %rsp
        jmp *%rcx

        /* Next::SignalReturn */
    9:  movq {stack_pointer}(%rsp), %rsp
        jmp warren_restorer

        /* Next::Wait. A call that has taken long may have waited for another process. */
    10: WARREN_CFI_FRAME
        WARREN_FLAGS
        WARREN_LOAD %rsp, 8
        movq (%rsp), %rax
        syscall
        movq %rax, {result}(%rsp)
        rdtsc
        shlq $32, %rdx
        orq %rdx, %rax
        subq {resume}(%rsp), %rax
        cmpq ${long}, %rax
        jb 3b
        lock incq {process}+{waits}(%rip)
        jmp 3b
        .cfi_endproc

    /* C calls: the number, then the arguments. */
    .p2align 4
    WARREN_LABEL warren_call
        .cfi_startproc
        movq %rdi, %rax
        movq %rsi, %rdi
        movq %rdx, %rsi
        movq %rcx, %rdx
        movq %r8, %r10
        movq %r9, %r8
        movq 8(%rsp), %r9
        syscall
        ret
        .cfi_endproc

    .p2align 4
    WARREN_LABEL warren_call_32
        .cfi_startproc
        pushq %rbx
        .cfi_adjust_cfa_offset 8
        pushq %rbp
        .cfi_adjust_cfa_offset 8
        movq %rdi, %rax
        movq %rsi, %r11
        movq 0(%r11), %rbx
        movq 8(%r11), %rcx
        movq 16(%r11), %rdx
        movq 24(%r11), %rsi
        movq 32(%r11), %rdi
        movq 40(%r11), %rbp
        int $0x80
        popq %rbp
        .cfi_adjust_cfa_offset -8
        popq %rbx
        .cfi_adjust_cfa_offset -8
        ret
        .cfi_endproc

    /* rsp is at a ucontext. Unwinders read the registers from there. */
    .p2align 4
        .cfi_startproc simple
        .cfi_signal_frame
        .cfi_escape 0x0f, 0x04, 0x77, 0xa0, 0x01, 0x06
        .cfi_escape 0x10, 0x08, 0x02, 0x77, 0x28
        .cfi_escape 0x10, 0x09, 0x02, 0x77, 0x30
        .cfi_escape 0x10, 0x0a, 0x02, 0x77, 0x38
        .cfi_escape 0x10, 0x0b, 0x03, 0x77, 0xc0, 0x00
        .cfi_escape 0x10, 0x0c, 0x03, 0x77, 0xc8, 0x00
        .cfi_escape 0x10, 0x0d, 0x03, 0x77, 0xd0, 0x00
        .cfi_escape 0x10, 0x0e, 0x03, 0x77, 0xd8, 0x00
        .cfi_escape 0x10, 0x0f, 0x03, 0x77, 0xe0, 0x00
        .cfi_escape 0x10, 0x05, 0x03, 0x77, 0xe8, 0x00
        .cfi_escape 0x10, 0x04, 0x03, 0x77, 0xf0, 0x00
        .cfi_escape 0x10, 0x06, 0x03, 0x77, 0xf8, 0x00
        .cfi_escape 0x10, 0x03, 0x03, 0x77, 0x80, 0x01
        .cfi_escape 0x10, 0x01, 0x03, 0x77, 0x88, 0x01
        .cfi_escape 0x10, 0x00, 0x03, 0x77, 0x90, 0x01
        .cfi_escape 0x10, 0x02, 0x03, 0x77, 0x98, 0x01
        .cfi_escape 0x10, 0x07, 0x03, 0x77, 0xa0, 0x01
        .cfi_escape 0x10, 0x10, 0x03, 0x77, 0xa8, 0x01
        nop
    WARREN_LABEL warren_restorer
        andb $0xbf, {mask_byte}(%rsp)
        movq $15, %rax
        syscall
        ud2
        .cfi_endproc

    .p2align 12
    WARREN_LABEL warren_stub_end
    .popsection
    "#,
    frame = const size_of::<Frame>(),
    stack_pointer = const offset_of!(Frame, stack_pointer),
    return_address = const offset_of!(SystemCall, return_address),
    flags = const offset_of!(Frame, flags),
    kept = const offset_of!(Frame, kept),
    vectors = const offset_of!(Frame, vectors),
    result = const offset_of!(Frame, result),
    resume = const offset_of!(Frame, resume),
    r_kept = const offset_of!(Resume, kept),
    r_return = const offset_of!(Resume, return_address),
    r_stack = const offset_of!(Resume, stack_pointer),
    r_flags = const offset_of!(Resume, flags),
    r_rbx = const offset_of!(Resume, rbx),
    r_busy = const offset_of!(Resume, busy),
    r_mask = const offset_of!(Resume, mask),
    r_held = const offset_of!(Resume, held),
    mask = const offset_of!(Frame, mask),
    held = const offset_of!(Frame, held),
    mask_byte = const offset_of!(crate::abi::Context, mask) + 3,
    process = sym PROCESS,
    vforks = const offset_of!(Process, program.life.vforks),
    children = const offset_of!(Process, program.life.children),
    waits = const offset_of!(Process, answers.clock.waits),
    long = const LONG_CYCLES,
    on_call = sym on_call,
    on_forked = sym on_forked,
    on_child = sym on_child,
    options(att_syntax)
);

// Where the kernel enters every handler of the program. Under the lock the signal is deferred, else
// the program's handler gets the stack as the kernel has made it.
core::arch::global_asm!(
    r#"
    .pushsection .text.warren_on_signal,"ax",@progbits
    .globl warren_on_signal
    .hidden warren_on_signal
    .type warren_on_signal, @function
    warren_on_signal:
        .cfi_startproc
        cmpl $0, {process}+{phase}(%rip)
        jne {defer}
        movslq %edi, %rax
        leaq {process}+{handlers}(%rip), %r11
        jmpq *(%r11,%rax,8)
        .cfi_endproc
    .popsection
    "#,
    process = sym PROCESS,
    phase = const offset_of!(Process, program.deferral.phase),
    handlers = const offset_of!(Process, program.deferral.handlers),
    defer = sym defer,
    options(att_syntax)
);
