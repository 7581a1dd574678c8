//! The memory functions that the compiler calls, hidden, so that none of them resolves to the C
//! library.
//!
//! The C library's versions use AVX, which would destroy the upper halves of vector registers that
//! the entry does not save. These use general registers and the low halves only, which it saves.
//!
//! Most of what is copied are values of less than 128 bytes, for which `rep movsb` takes longer
//! than the copy itself. Here everything is loaded before anything is stored, in one to eight
//! pieces that may overlap.

/// Defines the functions, with a prefix before their names.
#[cfg(any(panic = "abort", test))]
macro_rules! functions {
    ($prefix:literal) => {
        core::arch::global_asm!(
            r#"
    .macro WARREN_FUNCTION name
    .globl \name
    .hidden \name
    .type \name, @function
    \name:
    .endm
    .pushsection .text.warren_memory,"ax",@progbits
            "#,
            concat!("WARREN_FUNCTION ", $prefix, "memcpy"),
            concat!("WARREN_FUNCTION ", $prefix, "memmove"),
            r#"
        movq %rdi, %rax
        cmpq $16, %rdx
        jb 4f
        cmpq $32, %rdx
        ja 2f
        movups (%rsi), %xmm0
        movups -16(%rsi,%rdx), %xmm1
        movups %xmm0, (%rdi)
        movups %xmm1, -16(%rdi,%rdx)
        ret
    2:  cmpq $64, %rdx
        ja 3f
        movups (%rsi), %xmm0
        movups 16(%rsi), %xmm1
        movups -32(%rsi,%rdx), %xmm2
        movups -16(%rsi,%rdx), %xmm3
        movups %xmm0, (%rdi)
        movups %xmm1, 16(%rdi)
        movups %xmm2, -32(%rdi,%rdx)
        movups %xmm3, -16(%rdi,%rdx)
        ret
    3:  cmpq $128, %rdx
        ja 7f
        movups (%rsi), %xmm0
        movups 16(%rsi), %xmm1
        movups 32(%rsi), %xmm2
        movups 48(%rsi), %xmm3
        movups -64(%rsi,%rdx), %xmm4
        movups -48(%rsi,%rdx), %xmm5
        movups -32(%rsi,%rdx), %xmm6
        movups -16(%rsi,%rdx), %xmm7
        movups %xmm0, (%rdi)
        movups %xmm1, 16(%rdi)
        movups %xmm2, 32(%rdi)
        movups %xmm3, 48(%rdi)
        movups %xmm4, -64(%rdi,%rdx)
        movups %xmm5, -48(%rdi,%rdx)
        movups %xmm6, -32(%rdi,%rdx)
        movups %xmm7, -16(%rdi,%rdx)
        ret
    4:  cmpl $8, %edx
        jb 5f
        movq (%rsi), %rcx
        movq -8(%rsi,%rdx), %r8
        movq %rcx, (%rdi)
        movq %r8, -8(%rdi,%rdx)
        ret
    5:  cmpl $4, %edx
        jb 6f
        movl (%rsi), %ecx
        movl -4(%rsi,%rdx), %r8d
        movl %ecx, (%rdi)
        movl %r8d, -4(%rdi,%rdx)
        ret
    6:  testl %edx, %edx
        je 8f
        movl %edx, %ecx
        shrl $1, %ecx
        movzbl (%rsi), %r8d
        movzbl (%rsi,%rcx), %r9d
        movzbl -1(%rsi,%rdx), %r10d
        movb %r8b, (%rdi)
        movb %r9b, (%rdi,%rcx)
        movb %r10b, -1(%rdi,%rdx)
    8:  ret

    # More than 128 bytes: the piece at the other end is loaded first, and stored last.
    7:  movq %rdi, %r8
        subq %rsi, %r8
        cmpq %rdx, %r8
        jb 5f
        cmpq $1024, %rdx
        jae 4f
        movups -64(%rsi,%rdx), %xmm4
        movups -48(%rsi,%rdx), %xmm5
        movups -32(%rsi,%rdx), %xmm6
        movups -16(%rsi,%rdx), %xmm7
        leaq -64(%rdi,%rdx), %r8
    3:  movups (%rsi), %xmm0
        movups 16(%rsi), %xmm1
        movups 32(%rsi), %xmm2
        movups 48(%rsi), %xmm3
        movups %xmm0, (%rdi)
        movups %xmm1, 16(%rdi)
        movups %xmm2, 32(%rdi)
        movups %xmm3, 48(%rdi)
        addq $64, %rsi
        addq $64, %rdi
        cmpq %r8, %rdi
        jb 3b
        movups %xmm4, (%r8)
        movups %xmm5, 16(%r8)
        movups %xmm6, 32(%r8)
        movups %xmm7, 48(%r8)
        ret
    4:  movq %rdx, %rcx
        rep movsb
        ret

    # The target begins within the source: from the end.
    5:  movups (%rsi), %xmm4
        movups 16(%rsi), %xmm5
        movups 32(%rsi), %xmm6
        movups 48(%rsi), %xmm7
        addq %rdx, %rsi
        leaq (%rdi,%rdx), %r8
        leaq 64(%rdi), %rcx
    6:  movups -64(%rsi), %xmm0
        movups -48(%rsi), %xmm1
        movups -32(%rsi), %xmm2
        movups -16(%rsi), %xmm3
        movups %xmm0, -64(%r8)
        movups %xmm1, -48(%r8)
        movups %xmm2, -32(%r8)
        movups %xmm3, -16(%r8)
        subq $64, %rsi
        subq $64, %r8
        cmpq %rcx, %r8
        ja 6b
        movups %xmm4, (%rdi)
        movups %xmm5, 16(%rdi)
        movups %xmm6, 32(%rdi)
        movups %xmm7, 48(%rdi)
        ret
            "#,
            concat!("WARREN_FUNCTION ", $prefix, "memset"),
            r#"
        movzbl %sil, %eax
        movabsq $0x0101010101010101, %r8
        imulq %rax, %r8
        cmpq $16, %rdx
        jb 4f
        cmpq $256, %rdx
        ja 3f
        movq %rdi, %rax
        movq %r8, %xmm0
        punpcklqdq %xmm0, %xmm0
        leaq -16(%rdi,%rdx), %r8
    2:  movups %xmm0, (%rdi)
        addq $16, %rdi
        cmpq %r8, %rdi
        jb 2b
        movups %xmm0, (%r8)
        ret
    3:  movq %rdi, %r9
        movq %rdx, %rcx
        rep stosb
        movq %r9, %rax
        ret
    4:  movq %rdi, %rax
        cmpl $8, %edx
        jb 5f
        movq %r8, (%rdi)
        movq %r8, -8(%rdi,%rdx)
        ret
    5:  cmpl $4, %edx
        jb 6f
        movl %r8d, (%rdi)
        movl %r8d, -4(%rdi,%rdx)
        ret
    6:  testl %edx, %edx
        je 7f
        movb %r8b, (%rdi)
        movb %r8b, -1(%rdi,%rdx)
        shrl $1, %edx
        movb %r8b, (%rdi,%rdx)
    7:  ret
            "#,
            concat!("WARREN_FUNCTION ", $prefix, "bcmp"),
            concat!("WARREN_FUNCTION ", $prefix, "memcmp"),
            r#"
        xorl %ecx, %ecx
        cmpq $8, %rdx
        jb 5f
    2:  movq (%rdi,%rcx), %rax
        movq (%rsi,%rcx), %r8
        cmpq %r8, %rax
        jne 4f
        addq $8, %rcx
        leaq 8(%rcx), %r9
        cmpq %rdx, %r9
        jbe 2b
        cmpq %rdx, %rcx
        je 3f
        # The last 8 bytes, of which some have been compared.
        movq -8(%rdi,%rdx), %rax
        movq -8(%rsi,%rdx), %r8
        cmpq %r8, %rax
        jne 4f
    3:  xorl %eax, %eax
        ret
    4:  bswapq %rax
        bswapq %r8
        cmpq %r8, %rax
        sbbl %eax, %eax
        orl $1, %eax
        ret
    5:  cmpq %rdx, %rcx
        je 3b
        movzbl (%rdi,%rcx), %eax
        movzbl (%rsi,%rcx), %r8d
        incq %rcx
        subl %r8d, %eax
        je 5b
        ret
            "#,
            concat!("WARREN_FUNCTION ", $prefix, "strlen"),
            r#"
        xorl %eax, %eax
    2:  cmpb $0, (%rdi,%rax)
        je 3f
        incq %rax
        jmp 2b
    3:  ret
    .popsection
            "#,
            options(att_syntax)
        );
    };
}

#[cfg(all(panic = "abort", not(test)))]
functions!("");

#[cfg(test)]
mod tests {
    use core::ffi::{c_char, c_int, c_void};

    functions!("warren_test_");

    // SAFETY: the macro defines them.
    unsafe extern "C" {
        fn warren_test_memmove(to: *mut c_void, from: *const c_void, count: usize) -> *mut c_void;
        fn warren_test_memcpy(to: *mut c_void, from: *const c_void, count: usize) -> *mut c_void;
        fn warren_test_memset(to: *mut c_void, byte: c_int, count: usize) -> *mut c_void;
        fn warren_test_memcmp(a: *const c_void, b: *const c_void, count: usize) -> c_int;
        fn warren_test_bcmp(a: *const c_void, b: *const c_void, count: usize) -> c_int;
        fn warren_test_strlen(string: *const c_char) -> usize;
    }

    /// Each length that takes a way of its own, and those beside it.
    fn lengths() -> impl Iterator<Item = usize> {
        (0..=300).chain(1020..1030).chain([1500, 4096, 4099])
    }

    fn pattern(length: usize) -> Vec<u8> {
        (0..length).map(|at| (at * 7 + at / 256) as u8).collect()
    }

    #[test]
    fn bytes_are_copied_also_over_themselves() {
        for length in lengths() {
            for (from, to) in [(0, 0), (64, 65), (65, 64), (64, 100), (100, 64), (64, 200), (3, 0)]
            {
                let mut bytes = pattern(length + 400);
                let mut expected = bytes.clone();
                expected.copy_within(from..from + length, to);
                let start = bytes.as_mut_ptr();
                // SAFETY: both ranges are in the vector.
                let returned = unsafe {
                    warren_test_memmove(start.add(to).cast(), start.add(from).cast(), length)
                };
                assert_eq!(returned, start.wrapping_add(to).cast());
                assert!(bytes == expected, "{length} bytes from {from} to {to}");
            }
        }
    }

    #[test]
    fn bytes_are_copied_elsewhere_and_no_others() {
        for length in lengths() {
            let (from, mut to) = (pattern(length), vec![0xee_u8; length + 32]);
            let start = to.as_mut_ptr();
            // SAFETY: the ranges are in the vectors.
            unsafe { warren_test_memcpy(start.add(16).cast(), from.as_ptr().cast(), length) };
            assert!(to[16..16 + length] == from, "{length} bytes");
            assert!(to[..16].iter().chain(&to[16 + length..]).all(|byte| *byte == 0xee));
        }
    }

    #[test]
    fn bytes_are_set_and_no_others() {
        for length in lengths() {
            let mut bytes = vec![0xee_u8; length + 32];
            let start = bytes.as_mut_ptr();
            // SAFETY: the range is in the vector. Only the low byte of the value counts.
            let returned = unsafe { warren_test_memset(start.add(16).cast(), 0x7a5, length) };
            assert_eq!(returned, start.wrapping_add(16).cast());
            assert!(bytes[16..16 + length].iter().all(|byte| *byte == 0xa5), "{length} bytes");
            assert!(bytes[..16].iter().chain(&bytes[16 + length..]).all(|byte| *byte == 0xee));
        }
    }

    #[test]
    fn bytes_are_compared_as_unsigned_in_their_order() {
        for length in lengths() {
            let bytes = pattern(length);
            let compare = |other: &[u8]| {
                let (a, b) = (bytes.as_ptr().cast(), other.as_ptr().cast());
                // SAFETY: both have so many bytes.
                let found =
                    unsafe { (warren_test_memcmp(a, b, length), warren_test_bcmp(a, b, length)) };
                assert_eq!(found.0 != 0, found.1 != 0);
                found.0.signum()
            };
            assert_eq!(compare(&bytes), 0);
            for at in (0..length).step_by(1 + length / 40) {
                for byte in [0, 0x7f, 0x80, 0xff] {
                    let mut other = bytes.clone();
                    other[at] = byte;
                    // What follows the first difference does not count.
                    other[at + 1..].iter_mut().for_each(|byte| *byte = !*byte);
                    if byte != bytes[at] {
                        let expected = bytes.cmp(&other) as c_int;
                        assert_eq!(compare(&other), expected, "{length} bytes, {at}: {byte}");
                    }
                }
            }
        }
    }

    #[test]
    fn strings_end_with_a_zero() {
        for length in [0, 1, 7, 8, 200] {
            let string = [vec![b'x'; length], vec![0, b'y']].concat();
            // SAFETY: the string ends with a zero.
            assert_eq!(unsafe { warren_test_strlen(string.as_ptr().cast()) }, length);
        }
    }
}
