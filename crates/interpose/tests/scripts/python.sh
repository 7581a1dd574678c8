# Threads, processes, signals and sockets of Python.
# needs: python3
set -e
python3 - <<'X'
import threading, subprocess, os, sqlite3, tempfile, signal, multiprocessing, hashlib, socket, asyncio, concurrent.futures as f
r=[]
def w(i):
    p=subprocess.run(["sh","-c","echo %d; exit %d"%(i,i)],capture_output=True,text=True); r.append((i,p.stdout,p.returncode))
t=[threading.Thread(target=w,args=(i,)) for i in range(10)]
[x.start() for x in t]; [x.join() for x in t]
print(sorted(r))
with f.ThreadPoolExecutor(4) as e: print(sum(e.map(lambda i: len(open("/etc/passwd").read())>0, range(200))))
with multiprocessing.Pool(2) as p: print(p.map(abs,[-1,-2,3]))
print(os.spawnv(os.P_WAIT,"/bin/true",["true"]), os.popen("echo p").read())
signal.signal(signal.SIGALRM, lambda *a: print("alarm")); signal.setitimer(signal.ITIMER_REAL,0.01); signal.pause()
async def m():
    p=await asyncio.create_subprocess_shell("echo async",stdout=subprocess.PIPE); print(await p.communicate())
asyncio.run(m())
a,b=socket.socketpair(); a.send(b"x"); print(b.recv(1)); pid=os.fork()
if pid==0: os._exit(3)
print(os.waitstatus_to_exitcode(os.waitpid(pid,0)[1]))
X
