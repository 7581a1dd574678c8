# Stops a process as a debugger does, so that SIGCONT does not resume it: traced.py PID. Says "stopped" when it
# is. The process goes on when this program ends.
import ctypes, os, sys, time

SEIZE, INTERRUPT = 0x4206, 0x4207
libc = ctypes.CDLL(None, use_errno=True)
pid = int(sys.argv[1])
for request in (SEIZE, INTERRUPT):
    if libc.ptrace(request, pid, None, None) != 0:
        sys.exit(f"ptrace: {os.strerror(ctypes.get_errno())}")
os.waitpid(pid, 0x40000000)
print("stopped", flush=True)
time.sleep(600)
