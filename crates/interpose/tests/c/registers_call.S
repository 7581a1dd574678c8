/* call(before, after): loads all registers from `before`, makes a call, stores them to `after`.
 * Layout: 12 words of general registers, flags, mxcsr, x87 control, a word; at 128 the red zone
 * (128 bytes); at 256 the vectors (64 bytes each). */
    .macro GENERAL op
    .ifc \op, load
        mov 0(%rdi), %rbx; mov 8(%rdi), %rbp; mov 16(%rdi), %r12; mov 24(%rdi), %r13
        mov 32(%rdi), %r14; mov 40(%rdi), %r15; mov 48(%rdi), %rsi; mov 56(%rdi), %rdx
        mov 64(%rdi), %r10; mov 72(%rdi), %r8; mov 80(%rdi), %r9; mov 88(%rdi), %rdi
    .else
        mov %rbx, 0(%rdi); mov %rbp, 8(%rdi); mov %r12, 16(%rdi); mov %r13, 24(%rdi)
        mov %r14, 32(%rdi); mov %r15, 40(%rdi); mov %rsi, 48(%rdi); mov %rdx, 56(%rdi)
        mov %r10, 64(%rdi); mov %r8, 72(%rdi); mov %r9, 80(%rdi); mov %rcx, 88(%rdi)
    .endif
    .endm

    .macro VECTORS op, insn, kind, last
    .set n, 0
    .rept \last
        VECTOR \op, \insn, \kind, %n
        .set n, n + 1
    .endr
    .endm
    .altmacro
    .macro VECTOR op, insn, kind, n
    .ifc \op, load
        \insn 256 + 64 * \n(%rdi), %\kind\n
    .else
        \insn %\kind\n, 256 + 64 * \n(%rdi)
    .endif
    .endm

    .macro FUNCTION name, insn, kind, last, number
    .globl \name
    .type \name, @function
\name:
    .cfi_startproc
    push %rbx; push %rbp; push %r12; push %r13; push %r14; push %r15; push %rsi
    VECTORS load, \insn, \kind, \last
    .set n, 0
    .rept 16
        ZONE load, %n
        .set n, n + 1
    .endr
    ldmxcsr 104(%rdi)
    fldcw 112(%rdi)
    GENERAL load
    mov $0x7fffffff, %eax
    add $0x7fffffff, %eax
    stc
    mov $\number, %eax
    syscall
    mov %rdi, %rcx
    mov (%rsp), %rdi
    GENERAL store
    .set n, 0
    .rept 16
        ZONE store, %n
        .set n, n + 1
    .endr
    lea -128(%rsp), %rsp
    pushf
    pop 96(%rdi)
    lea 128(%rsp), %rsp
    VECTORS store, \insn, \kind, \last
    stmxcsr 104(%rdi)
    fnstcw 112(%rdi)
    pop %rsi; pop %r15; pop %r14; pop %r13; pop %r12; pop %rbp; pop %rbx
    ret
    .cfi_endproc
    .size \name, . - \name
    .endm
    .macro ZONE op, n
    .ifc \op, load
        mov 128 + 8 * \n(%rdi), %rax
        mov %rax, -128 + 8 * \n(%rsp)
    .else
        mov -128 + 8 * \n(%rsp), %rax
        mov %rax, 128 + 8 * \n(%rdi)
    .endif
    .endm

    .text
    FUNCTION call_sse, movups, xmm, 16, 110
    FUNCTION call_avx, vmovups, ymm, 16, 110
    FUNCTION call_avx512, vmovups, zmm, 32, 110
    FUNCTION served_sse, movups, xmm, 16, 157
    FUNCTION served_avx, vmovups, ymm, 16, 157
    FUNCTION served_avx512, vmovups, zmm, 32, 157
    .section .note.GNU-stack,"",@progbits
