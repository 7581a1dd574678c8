# forbid.py ERRNO NUMBER... -- PROGRAM ARGUMENTS...
#
# Runs a program for which system calls of these numbers fail with an errno, as under the seccomp
# profile of a container. Numbers from 424 on are the same on all machines.

import ctypes
import os
import struct
import sys

PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
LOAD, JUMP_EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, ERRNO = 0x7FFF0000, 0x00050000

end = sys.argv.index("--")
errno, numbers, program = int(sys.argv[1]), [int(n) for n in sys.argv[2:end]], sys.argv[end + 1 :]

filter = [(LOAD, 0, 0, 0)]
filter += [(JUMP_EQUAL, len(numbers) - at, 0, number) for at, number in enumerate(numbers)]
filter += [(RETURN, 0, 0, ALLOW), (RETURN, 0, 0, ERRNO | errno)]
code = b"".join(struct.pack("HBBI", *instruction) for instruction in filter)


class Program(ctypes.Structure):
    _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.c_char_p)]


libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
assert libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(Program(len(filter), code))) == 0
os.execvp(program[0], program)
