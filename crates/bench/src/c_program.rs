//! A program of many files in C, which prints the sum of what its parts compute.

use std::fmt::Write;
use std::fs;
use std::path::Path;

const FUNCTIONS: u32 = 12;
const STEPS: u32 = 100;

const MAKEFILE: &str = "\
CFLAGS = -O1
PARTS = $(patsubst %.c,%.o,$(wildcard part_*.c))

program: main.o $(PARTS)
\tcc -o $@ main.o $(PARTS)

%.o: %.c parts.h
\tcc $(CFLAGS) -c -o $@ $<
";

/// Makes a directory with the source of a program of so many parts, each in a file of its own, and
/// a `main.c`.
pub(crate) fn make(at: &Path, parts: u32) -> std::io::Result<()> {
    fs::create_dir(at)?;
    fs::write(at.join("Makefile"), MAKEFILE)?;
    let mut header = "#include <stdint.h>\n".to_owned();
    let mut main = "#include <stdio.h>\n#include \"parts.h\"\n\nint main(void)\n{\n    \
                    uint32_t sum = 0;\n"
        .to_owned();
    for part in 0..parts {
        let _ = writeln!(header, "uint32_t part_{part:02}(void);");
        let _ = writeln!(main, "    sum += part_{part:02}();");
        fs::write(at.join(format!("part_{part:02}.c")), source(part))?;
    }
    main.push_str("    printf(\"%u\\n\", (unsigned)sum);\n    return 0;\n}\n");
    fs::write(at.join("parts.h"), header)?;
    fs::write(at.join("main.c"), main)
}

fn source(part: u32) -> String {
    let mut text = "#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n\
                    #include \"parts.h\"\n\n"
        .to_owned();
    let mut calls = String::new();
    for function in 0..FUNCTIONS {
        let factor = factor(part, function);
        let _ = writeln!(
            text,
            "static uint32_t step_{function}(uint32_t x)\n{{\n    for (uint32_t i = 0; i < \
             {STEPS}; i++)\n        x = x * {factor}u + i;\n    return x;\n}}\n"
        );
        let _ = writeln!(calls, "    x = step_{function}(x);");
    }
    let _ = writeln!(text, "uint32_t part_{part:02}(void)\n{{\n    uint32_t x = 1;");
    text + &calls + "    return x;\n}\n"
}

const fn factor(part: u32, function: u32) -> u32 {
    2 * (part * FUNCTIONS + function) + 3
}

/// The sum that a program of so many parts prints.
pub(crate) const fn sum(parts: u32) -> u32 {
    let mut sum = 0u32;
    let mut part = 0;
    while part < parts {
        let mut x = 1u32;
        let mut function = 0;
        while function < FUNCTIONS {
            let mut step = 0;
            while step < STEPS {
                x = x.wrapping_mul(factor(part, function)).wrapping_add(step);
                step += 1;
            }
            function += 1;
        }
        sum = sum.wrapping_add(x);
        part += 1;
    }
    sum
}
