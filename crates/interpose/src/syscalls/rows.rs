//! The rows of the table (Linux 7.0, `arch/x86/entry/syscalls/syscall_64.tbl`, and the signatures
//! in `include/linux/syscalls.h`). [`super`] says what the columns mean.

rows! {
    // number and name           class      care       names    paths numbers file       takes
      0 READ                    Read       -          A        -    Other   Read       -;
      1 WRITE                   Wait       -          A        -    Other   Write      -;
      2 OPEN                    Open       -          -        A    Gives   -          -;
      3 CLOSE                   Close      -          A        -    Closes  Close      -;
      4 STAT                    Path       -          -        A    Keeps   -          -;
      5 FSTAT                   Plain      -          A        -    Keeps   Stat       -;
      6 LSTAT                   Path       -          -        A    Keeps   -          -;
      7 POLL                    Sleep      -          Polled   -    Other   -          -;
      8 LSEEK                   Plain      -          A        -    Keeps   Seek       -;
      9 MMAP                    Plain      Map        E        -    Keeps   Map        -;
     10 MPROTECT                Plain      Remap      -        -    Keeps   -          -;
     11 MUNMAP                  Plain      Unmap      -        -    Keeps   -          -;
     12 BRK                     Plain      Pages      -        -    Keeps   -          -;
     13 RT_SIGACTION            Plain      Action     -        -    Keeps   -          -;
     14 RT_SIGPROCMASK          Plain      Mask       -        -    Keeps   -          -;
     15 RT_SIGRETURN            Plain      Return     -        -    Keeps   -          -;
     16 IOCTL                   Wait       -          A        -    Gives   Ioctl      -;
     17 PREAD64                 Wait       -          A        -    Keeps   Read       -;
     18 PWRITE64                Wait       -          A        -    Keeps   Write      -;
     19 READV                   Read       -          A        -    Other   Read       -;
     20 WRITEV                  Wait       -          A        -    Other   Write      -;
     21 ACCESS                  Path       -          -        A    Keeps   -          -;
     22 PIPE                    Plain      -          -        -    Gives   -          -;
     23 SELECT                  Sleep      -          Selected -    Other   -          -;
     24 SCHED_YIELD             Wait       -          -        -    Keeps   -          -;
     25 MREMAP                  Plain      Remap      -        -    Keeps   -          -;
     28 MADVISE                 Plain      Advise     -        -    Keeps   -          -;
     30 SHMAT                   Plain      Attach     -        -    Other   -          -;
     32 DUP                     Plain      -          A        -    Gives   Duplicate  -;
     33 DUP2                    Duplicate  -          AB       -    Gives   -          -;
     34 PAUSE                   Sleep      -          -        -    Other   -          -;
     35 NANOSLEEP               Sleep      -          -        -    Other   -          -;
     39 GETPID                  Plain      -          -        -    Keeps   -          -;
     40 SENDFILE                Wait       -          AB       -    Other   -          -;
     41 SOCKET                  Plain      -          -        -    Gives   -          -;
     42 CONNECT                 Wait       -          A        -    Other   -          -;
     43 ACCEPT                  Sleep      -          A        -    Gives   -          -;
     44 SENDTO                  Wait       -          A        -    Other   -          -;
     45 RECVFROM                Sleep      -          A        -    Other   -          -;
     46 SENDMSG                 Wait       -          Sent     -    Other   -          -;
     47 RECVMSG                 Sleep      -          A        -    Gives   -          -;
     48 SHUTDOWN                Plain      -          A        -    Other   -          -;
     49 BIND                    Plain      -          A        -    Other   -          -;
     50 LISTEN                  Plain      -          A        -    Other   -          -;
     51 GETSOCKNAME             Plain      -          A        -    Other   -          -;
     52 GETPEERNAME             Plain      -          A        -    Other   -          -;
     53 SOCKETPAIR              Plain      -          -        -    Gives   -          -;
     54 SETSOCKOPT              Plain      -          A        -    Other   -          -;
     55 GETSOCKOPT              Plain      -          A        -    Other   -          -;
     56 CLONE                   Plain      Create     -        -    Gives   Child      -;
     57 FORK                    Plain      Create     Any      -    Other   -          -;
     58 VFORK                   Sleep      Create     Any      -    Other   Child      -;
     59 EXECVE                  Plain      Exec       -        A    Other   Exec       -;
     60 EXIT                    Plain      Exit       -        -    Other   -          -;
     61 WAIT4                   Sleep      -          -        -    Other   -          -;
     65 SEMOP                   Wait       -          -        -    Other   -          -;
     67 SHMDT                   Plain      Pages      -        -    Other   -          -;
     69 MSGSND                  Wait       -          -        -    Other   -          -;
     70 MSGRCV                  Sleep      -          -        -    Other   -          -;
     72 FCNTL                   Fcntl      -          A        -    Gives   Control    -;
     73 FLOCK                   Wait       -          A        -    Other   -          -;
     74 FSYNC                   Plain      -          A        -    Other   Sync       -;
     75 FDATASYNC               Plain      -          A        -    Other   SyncData   -;
     76 TRUNCATE                Plain      Pages      -        A    Other   -          -;
     77 FTRUNCATE               Plain      Pages      A        -    Other   Truncate   -;
     78 GETDENTS                Plain      -          A        -    Other   -          -;
     79 GETCWD                  Plain      -          -        -    Keeps   -          -;
     80 CHDIR                   Directory  -          -        A    Keeps   -          -;
     81 FCHDIR                  Directory  -          A        -    Other   -          -;
     82 RENAME                  Above      -          -        AB   Keeps   -          Ways;
     83 MKDIR                   Names      -          -        A    Keeps   -          -;
     84 RMDIR                   Names      -          -        A    Keeps   -          Ways;
     85 CREAT                   Open       -          -        A    Gives   -          -;
     86 LINK                    Names      -          -        AB   Other   -          -;
     87 UNLINK                  Names      -          -        A    Keeps   -          -;
     88 SYMLINK                 Names      -          -        B    Other   -          -;
     89 READLINK                Path       -          -        A    Keeps   -          -;
     90 CHMOD                   Above      -          -        A    Keeps   Link       ModeB;
     91 FCHMOD                  Above      -          A        -    Other   SetMode    ModeB;
     92 CHOWN                   Above      -          -        A    Other   -          -;
     93 FCHOWN                  Above      -          A        -    Other   SetOwner   -;
     94 LCHOWN                  Above      -          -        A    Other   -          -;
     95 UMASK                   Umask      -          -        -    Other   -          -;
     96 GETTIMEOFDAY            Plain      -          -        -    Keeps   -          -;
     98 GETRUSAGE               Plain      -          -        -    Keeps   -          -;
    101 PTRACE                  Plain      Trace      Any      -    Other   -          -;
    102 GETUID                  Plain      -          -        -    Keeps   -          -;
    104 GETGID                  Plain      -          -        -    Keeps   -          -;
    105 SETUID                  Rights     -          -        -    Other   -          -;
    106 SETGID                  Rights     -          -        -    Other   -          -;
    107 GETEUID                 Plain      -          -        -    Keeps   -          -;
    108 GETEGID                 Plain      -          -        -    Keeps   -          -;
    113 SETREUID                Rights     -          -        -    Other   -          -;
    114 SETREGID                Rights     -          -        -    Other   -          -;
    116 SETGROUPS               Rights     -          -        -    Other   -          -;
    117 SETRESUID               Rights     -          -        -    Other   -          -;
    119 SETRESGID               Rights     -          -        -    Other   -          -;
    122 SETFSUID                Rights     -          -        -    Other   -          -;
    123 SETFSGID                Rights     -          -        -    Other   -          -;
    126 CAPSET                  Rights     -          -        -    Other   -          -;
    128 RT_SIGTIMEDWAIT         Sleep      -          -        -    Other   -          -;
    130 RT_SIGSUSPEND           Sleep      MaskA      -        -    Other   -          -;
    131 SIGALTSTACK             Plain      -          -        -    Keeps   -          -;
    132 UTIME                   Names      -          -        A    Other   -          -;
    133 MKNOD                   Plain      -          -        A    Other   -          -;
    134 USELIB                  Plain      -          -        A    Other   -          -;
    137 STATFS                  Path       -          -        A    Other   -          -;
    138 FSTATFS                 Plain      -          A        -    Other   StatMount  -;
    155 PIVOT_ROOT              Mounts     -          -        AB   Other   -          -;
    157 PRCTL                   Control    Sandbox    -        -    Other   -          -;
    160 SETRLIMIT               Limit      -          -        -    Other   -          -;
    161 CHROOT                  Mounts     -          -        A    Other   -          -;
    163 ACCT                    Plain      -          -        A    Other   -          -;
    165 MOUNT                   Mounts     -          -        AB   Other   -          -;
    166 UMOUNT2                 Mounts     -          -        A    Other   -          -;
    167 SWAPON                  Plain      -          -        A    Other   -          -;
    168 SWAPOFF                 Plain      -          -        A    Other   -          -;
    179 QUOTACTL                Plain      -          -        B    Other   -          -;
    186 GETTID                  Plain      -          -        -    Keeps   -          -;
    187 READAHEAD               Plain      -          A        -    Other   ReadAhead  -;
    188 SETXATTR                Above      -          -        A    Other   -          Lists;
    189 LSETXATTR               Above      -          -        A    Other   -          Lists;
    190 FSETXATTR               Above      -          A        -    Other   SetXattr   Lists;
    191 GETXATTR                Path       -          -        A    Other   -          -;
    192 LGETXATTR               Path       -          -        A    Other   -          -;
    193 FGETXATTR               Plain      -          A        -    Other   GetXattr   -;
    194 LISTXATTR               Path       -          -        A    Other   -          -;
    195 LLISTXATTR              Path       -          -        A    Other   -          -;
    196 FLISTXATTR              Plain      -          A        -    Other   ListXattr  -;
    197 REMOVEXATTR             Above      -          -        A    Other   -          -;
    198 LREMOVEXATTR            Above      -          -        A    Other   -          -;
    199 FREMOVEXATTR            Above      -          A        -    Other   -          -;
    202 FUTEX                   Wait       -          -        -    Other   -          -;
    206 IO_SETUP                Plain      -          Any      -    Other   -          -;
    208 IO_GETEVENTS            Sleep      -          -        -    Other   -          -;
    209 IO_SUBMIT               Plain      -          Any      -    Other   -          -;
    213 EPOLL_CREATE            Plain      -          -        -    Gives   -          -;
    216 REMAP_FILE_PAGES        Plain      Pages      -        -    Other   -          -;
    217 GETDENTS64              Plain      -          A        -    Other   List       -;
    220 SEMTIMEDOP              Wait       -          -        -    Other   -          -;
    221 FADVISE64               Plain      -          A        -    Other   Advise     -;
    228 CLOCK_GETTIME           Plain      -          -        -    Keeps   -          -;
    230 CLOCK_NANOSLEEP         Sleep      -          -        -    Other   -          -;
    231 EXIT_GROUP              Plain      Exit       -        -    Other   -          -;
    232 EPOLL_WAIT              Sleep      -          A        -    Other   -          -;
    233 EPOLL_CTL               Plain      -          AC       -    Other   -          -;
    235 UTIMES                  Names      -          -        A    Other   -          -;
    240 MQ_OPEN                 Plain      -          -        -    Gives   -          -;
    242 MQ_TIMEDSEND            Wait       -          -        -    Other   -          -;
    243 MQ_TIMEDRECEIVE         Sleep      -          -        -    Other   -          -;
    245 MQ_GETSETATTR           Plain      -          A        -    Other   -          -;
    247 WAITID                  Sleep      -          -        -    Other   -          -;
    253 INOTIFY_INIT            Plain      -          -        -    Gives   -          -;
    254 INOTIFY_ADD_WATCH       Watch      -          A        B    Other   -          -;
    255 INOTIFY_RM_WATCH        Plain      -          A        -    Other   -          -;
    257 OPENAT                  Open       -          A        B    Gives   -          -;
    258 MKDIRAT                 Names      -          A        B    Keeps   -          -;
    259 MKNODAT                 Plain      -          A        B    Other   -          -;
    260 FCHOWNAT                Above      -          A        B    Other   -          -;
    261 FUTIMESAT               Names      -          A        B    Other   -          -;
    262 NEWFSTATAT              Path       -          A        B    Keeps   StatAt     -;
    263 UNLINKAT                Names      -          A        B    Keeps   -          WaysC;
    264 RENAMEAT                Above      -          AC       BD   Other   -          Ways;
    265 LINKAT                  Names      -          AC       BD   Other   -          -;
    266 SYMLINKAT               Names      -          B        C    Other   -          -;
    267 READLINKAT              Path       -          A        B    Keeps   -          -;
    268 FCHMODAT                Above      -          A        B    Other   Link       ModeC;
    269 FACCESSAT               Path       -          A        B    Keeps   -          -;
    270 PSELECT6                Sleep      MaskPair   Selected -    Other   -          -;
    271 PPOLL                   Sleep      MaskD      Polled   -    Other   -          -;
    272 UNSHARE                 Mounts     -          Any      -    Other   -          -;
    275 SPLICE                  Wait       -          AC       -    Other   -          -;
    276 TEE                     Wait       -          AB       -    Other   -          -;
    277 SYNC_FILE_RANGE         Plain      -          A        -    Other   SyncRange  -;
    278 VMSPLICE                Wait       -          A        -    Other   -          -;
    280 UTIMENSAT               Names      -          A        B    Keeps   SetTimes   -;
    281 EPOLL_PWAIT             Sleep      MaskE      A        -    Other   -          -;
    282 SIGNALFD                Plain      -          A        -    Gives   -          -;
    283 TIMERFD_CREATE          Plain      -          -        -    Gives   -          -;
    284 EVENTFD                 Plain      -          -        -    Gives   -          -;
    285 FALLOCATE               Plain      Pages      A        -    Other   Allocate   -;
    286 TIMERFD_SETTIME         Plain      -          A        -    Other   -          -;
    287 TIMERFD_GETTIME         Plain      -          A        -    Other   -          -;
    288 ACCEPT4                 Sleep      -          A        -    Gives   -          -;
    289 SIGNALFD4               Plain      -          A        -    Gives   -          -;
    290 EVENTFD2                Plain      -          -        -    Gives   -          -;
    291 EPOLL_CREATE1           Plain      -          -        -    Gives   -          -;
    292 DUP3                    Duplicate  -          AB       -    Gives   -          -;
    293 PIPE2                   Plain      -          -        -    Gives   -          -;
    294 INOTIFY_INIT1           Plain      -          -        -    Gives   -          -;
    295 PREADV                  Wait       -          A        -    Other   Read       -;
    296 PWRITEV                 Wait       -          A        -    Other   Write      -;
    298 PERF_EVENT_OPEN         Plain      -          D        -    Gives   -          -;
    299 RECVMMSG                Sleep      -          A        -    Gives   -          -;
    300 FANOTIFY_INIT           Plain      -          -        -    Gives   -          -;
    301 FANOTIFY_MARK           Watch      -          AD       E    Other   -          -;
    302 PRLIMIT64               Limits     -          -        -    Other   -          -;
    303 NAME_TO_HANDLE_AT       Plain      -          A        B    Other   -          -;
    304 OPEN_BY_HANDLE_AT       Plain      -          A        -    Gives   -          -;
    306 SYNCFS                  Plain      -          A        -    Other   -          -;
    307 SENDMMSG                Wait       -          Any      -    Other   -          -;
    308 SETNS                   Mounts     -          A        -    Other   -          -;
    312 KCMP                    Plain      -          Any      -    Other   -          -;
    313 FINIT_MODULE            Plain      -          A        -    Other   -          -;
    316 RENAMEAT2               Above      -          AC       BD   Other   -          Ways;
    317 SECCOMP                 Filter     Sandbox    -        -    Gives   -          -;
    318 GETRANDOM               Plain      -          -        -    Keeps   -          -;
    319 MEMFD_CREATE            Plain      -          -        -    Gives   -          -;
    320 KEXEC_FILE_LOAD         Plain      -          AB       -    Other   -          -;
    321 BPF                     Plain      -          Any      -    Gives   -          -;
    322 EXECVEAT                Plain      ExecAt     A        B    Other   Exec       -;
    323 USERFAULTFD             Unseen     -          -        -    Gives   -          -;
    326 COPY_FILE_RANGE         Plain      -          AC       -    Other   Copy       -;
    327 PREADV2                 Wait       -          A        -    Other   Read       -;
    328 PWRITEV2                Wait       -          A        -    Other   Write      -;
    329 PKEY_MPROTECT           Plain      Remap      -        -    Other   -          -;
    330 PKEY_ALLOC              Keys       -          -        -    Other   -          -;
    332 STATX                   Path       -          A        B    Keeps   StatAt     -;
    333 IO_PGETEVENTS           Sleep      MaskPair   -        -    Other   -          -;
    424 PIDFD_SEND_SIGNAL       Plain      -          A        -    Other   -          -;
    425 IO_URING_SETUP          Unseen     -          Any      -    Gives   -          -;
    426 IO_URING_ENTER          Wait       -          Any      -    Gives   -          -;
    427 IO_URING_REGISTER       Plain      -          Any      -    Other   -          -;
    428 OPEN_TREE               Mounts     -          A        B    Gives   -          -;
    429 MOVE_MOUNT              Mounts     -          AC       BD   Other   -          -;
    430 FSOPEN                  Plain      -          -        -    Gives   -          -;
    431 FSCONFIG                Mounts     -          AE       -    Other   -          -;
    432 FSMOUNT                 Mounts     -          A        -    Gives   -          -;
    433 FSPICK                  Plain      -          A        B    Gives   -          -;
    434 PIDFD_OPEN              Plain      -          -        -    Gives   -          -;
    435 CLONE3                  Plain      Create3    -        -    Gives   Child      -;
    436 CLOSE_RANGE             CloseRange -          Range    -    Closes  CloseRange -;
    437 OPENAT2                 Wait       -          A        B    Gives   -          -;
    438 PIDFD_GETFD             Plain      -          Any      -    Gives   -          -;
    439 FACCESSAT2              Path       -          A        B    Keeps   -          -;
    440 PROCESS_MADVISE         Plain      AdviseOf   A        -    Other   -          -;
    441 EPOLL_PWAIT2            Sleep      MaskE      A        -    Other   -          -;
    442 MOUNT_SETATTR           Mounts     -          A        B    Other   -          -;
    443 QUOTACTL_FD             Plain      -          A        -    Other   -          -;
    444 LANDLOCK_CREATE_RULESET Plain      -          -        -    Gives   -          -;
    445 LANDLOCK_ADD_RULE       Plain      -          Any      -    Other   -          -;
    446 LANDLOCK_RESTRICT_SELF  Rights     -          A        -    Other   -          -;
    447 MEMFD_SECRET            Plain      -          -        -    Gives   -          -;
    449 FUTEX_WAITV             Wait       -          -        -    Other   -          -;
    451 CACHESTAT               Plain      -          A        -    Other   -          -;
    452 FCHMODAT2               Above      -          A        B    Other   -          ModeC;
    455 FUTEX_WAIT              Wait       -          -        -    Other   -          -;
    463 SETXATTRAT              Above      -          A        B    Other   -          -;
    464 GETXATTRAT              Plain      -          A        B    Other   -          -;
    465 LISTXATTRAT             Plain      -          A        B    Other   -          -;
    466 REMOVEXATTRAT           Above      -          A        B    Other   -          -;
    467 OPEN_TREE_ATTR          Mounts     -          A        B    Gives   -          -;
    468 FILE_GETATTR            Plain      -          A        B    Other   -          -;
    469 FILE_SETATTR            Plain      -          A        B    Other   -          -;

    // The kernel makes these, and they concern no file that is served. They may display descriptors
    // or wait, or are too rare to be judged.
    plain {
        26 MSYNC, 27 MINCORE, 29 SHMGET, 31 SHMCTL, 36 GETITIMER, 37 ALARM, 38 SETITIMER, 62 KILL,
        63 UNAME, 64 SEMGET, 66 SEMCTL, 68 MSGGET, 71 MSGCTL, 97 GETRLIMIT, 99 SYSINFO, 100 TIMES,
        103 SYSLOG, 109 SETPGID, 110 GETPPID, 111 GETPGRP, 112 SETSID, 115 GETGROUPS, 118 GETRESUID,
        120 GETRESGID, 121 GETPGID, 124 GETSID, 125 CAPGET, 127 RT_SIGPENDING, 129 RT_SIGQUEUEINFO,
        135 PERSONALITY, 136 USTAT, 139 SYSFS, 140 GETPRIORITY, 141 SETPRIORITY, 142 SCHED_SETPARAM,
        143 SCHED_GETPARAM, 144 SCHED_SETSCHEDULER, 145 SCHED_GETSCHEDULER,
        146 SCHED_GET_PRIORITY_MAX, 147 SCHED_GET_PRIORITY_MIN, 148 SCHED_RR_GET_INTERVAL,
        149 MLOCK, 150 MUNLOCK, 151 MLOCKALL, 152 MUNLOCKALL, 153 VHANGUP, 154 MODIFY_LDT,
        156 _SYSCTL, 158 ARCH_PRCTL, 159 ADJTIMEX, 162 SYNC, 164 SETTIMEOFDAY, 169 REBOOT,
        170 SETHOSTNAME, 171 SETDOMAINNAME, 172 IOPL, 173 IOPERM, 174 CREATE_MODULE,
        175 INIT_MODULE, 176 DELETE_MODULE, 177 GET_KERNEL_SYMS, 178 QUERY_MODULE, 180 NFSSERVCTL,
        181 GETPMSG, 182 PUTPMSG, 183 AFS_SYSCALL, 184 TUXCALL, 185 SECURITY, 200 TKILL, 201 TIME,
        203 SCHED_SETAFFINITY, 204 SCHED_GETAFFINITY, 205 SET_THREAD_AREA, 207 IO_DESTROY,
        210 IO_CANCEL, 211 GET_THREAD_AREA, 212 LOOKUP_DCOOKIE, 214 EPOLL_CTL_OLD,
        215 EPOLL_WAIT_OLD, 218 SET_TID_ADDRESS, 219 RESTART_SYSCALL, 222 TIMER_CREATE,
        223 TIMER_SETTIME, 224 TIMER_GETTIME, 225 TIMER_GETOVERRUN, 226 TIMER_DELETE,
        227 CLOCK_SETTIME, 229 CLOCK_GETRES, 234 TGKILL, 236 VSERVER, 237 MBIND, 238 SET_MEMPOLICY,
        239 GET_MEMPOLICY, 241 MQ_UNLINK, 244 MQ_NOTIFY, 246 KEXEC_LOAD, 248 ADD_KEY,
        249 REQUEST_KEY, 250 KEYCTL, 251 IOPRIO_SET, 252 IOPRIO_GET, 256 MIGRATE_PAGES,
        273 SET_ROBUST_LIST, 274 GET_ROBUST_LIST, 279 MOVE_PAGES, 297 RT_TGSIGQUEUEINFO,
        305 CLOCK_ADJTIME, 309 GETCPU, 310 PROCESS_VM_READV, 311 PROCESS_VM_WRITEV,
        314 SCHED_SETATTR, 315 SCHED_GETATTR, 324 MEMBARRIER, 325 MLOCK2, 331 PKEY_FREE, 334 RSEQ,
        335 URETPROBE, 336 UPROBE, 448 PROCESS_MRELEASE, 450 SET_MEMPOLICY_HOME_NODE,
        453 MAP_SHADOW_STACK, 454 FUTEX_WAKE, 456 FUTEX_REQUEUE, 457 STATMOUNT, 458 LISTMOUNT,
        459 LSM_GET_SELF_ATTR, 460 LSM_SET_SELF_ATTR, 461 LSM_LIST_MODULES, 462 MSEAL, 470 LISTNS,
        471 RSEQ_SLICE_YIELD,
    }
}
