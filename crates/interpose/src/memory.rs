//! The memory functions that the compiler calls, hidden, so that none of them resolves to the C
//! library.
//!
//! The C library's versions use AVX, which would destroy the upper halves of vector registers that
//! the entry does not save. These use general registers only.

#[cfg(all(panic = "abort", not(test)))]
core::arch::global_asm!(
    r#"
    .macro WARREN_FUNCTION name
    .globl \name
    .hidden \name
    .type \name, @function
    \name:
    .endm

    .pushsection .text.warren_memory,"ax",@progbits
    WARREN_FUNCTION memcpy
        movq %rdi, %rax
        movq %rdx, %rcx
        rep movsb
        ret
    WARREN_FUNCTION memmove
        movq %rdi, %rax
        movq %rdx, %rcx
        movq %rdi, %r8
        subq %rsi, %r8
        cmpq %rdx, %r8
        jb 1f
        rep movsb
        ret
    1:  leaq -1(%rdi,%rdx), %rdi
        leaq -1(%rsi,%rdx), %rsi
        std
        rep movsb
        cld
        ret
    WARREN_FUNCTION memset
        movq %rdi, %r8
        movl %esi, %eax
        movq %rdx, %rcx
        rep stosb
        movq %r8, %rax
        ret
    WARREN_FUNCTION bcmp
    WARREN_FUNCTION memcmp
        xorl %ecx, %ecx
    1:  cmpq %rdx, %rcx
        je 2f
        movzbl (%rdi,%rcx), %eax
        movzbl (%rsi,%rcx), %r8d
        incq %rcx
        subl %r8d, %eax
        je 1b
        ret
    2:  xorl %eax, %eax
        ret
    WARREN_FUNCTION strlen
        xorl %eax, %eax
    1:  cmpb $0, (%rdi,%rax)
        je 2f
        incq %rax
        jmp 1b
    2:  ret
    .popsection
    "#,
    options(att_syntax)
);
