/* A thousand call sites at all alignments, in functions of 32 bytes. */
    .text
    .globl sites
    .p2align 5
sites:
    .set n, 0
    .rept 1024
    .cfi_startproc
    .rept n % 8
    nop
    .endr
    mov $110, %eax
    syscall
    ret
    .p2align 5, 0x90
    .cfi_endproc
    .set n, n + 1
    .endr
    .section .note.GNU-stack,"",@progbits
