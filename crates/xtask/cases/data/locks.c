/* Locks between processes, each case with its result on a line. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what) do { if (!(what)) { perror(#what); exit(1); } } while (0)

static int record(int fd, int command, short type, off_t start, off_t length) {
  struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = length};
  return fcntl(fd, command, &lock) == 0 ? 0 : errno;
}

static int open_file(void) {
  int fd = open("locked", O_RDWR | O_CREAT, 0644);
  CHECK(fd >= 0);
  return fd;
}

/* Runs `body` in a child with its own descriptor and gives back its exit status. */
static int in_child(int (*body)(int)) {
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) _exit(body(open_file()));
  int status;
  CHECK(waitpid(child, &status, 0) == child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static int try_all(int fd) { return record(fd, F_SETLK, F_WRLCK, 0, 0); }
static int try_middle(int fd) { return record(fd, F_SETLK, F_WRLCK, 40, 10); }
static int try_read(int fd) { return record(fd, F_SETLK, F_RDLCK, 0, 10); }
static int try_flock(int fd) { return flock(fd, LOCK_EX | LOCK_NB) == 0 ? 0 : errno; }
static int try_ofd(int fd) { return record(fd, F_OFD_SETLK, F_WRLCK, 0, 10); }
static int who_holds(int fd) {
  struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
  CHECK(fcntl(fd, F_GETLK, &lock) == 0);
  return lock.l_type == F_UNLCK ? 0 : lock.l_pid == getppid() ? 1 : 2;
}
static int wait_all(int fd) { return record(fd, F_SETLKW, F_WRLCK, 0, 0); }

static void on_alarm(int signal) { (void)signal; }
static int wait_interrupted(int fd) {
  struct sigaction action = {.sa_handler = on_alarm};
  sigaction(SIGALRM, &action, NULL);
  alarm(1);
  return wait_all(fd);
}
static int wait_killed(int fd) {
  alarm(1);
  return wait_all(fd);
}

/* A lock of a description that was just closed, perhaps by a death, may take a moment to go. */
static int soon(int (*attempt)(int), int fd) {
  int error = attempt(fd);
  for (int i = 0; i < 20000 && error == EAGAIN; i++) {
    usleep(1000);
    error = attempt(fd);
  }
  return error;
}
static int take_flock(int fd) { return flock(fd, LOCK_EX); }
static int take_ofd(int fd) { return record(fd, F_OFD_SETLKW, F_WRLCK, 0, 10); }
static int soon_flock(int fd) { return soon(try_flock, fd); }
static int soon_ofd(int fd) { return soon(try_ofd, fd); }

static const char *name(int error) { return error == 0 ? "ok" : strerror(error); }

static void records(void) {
  int fd = open_file();
  CHECK(record(fd, F_SETLK, F_WRLCK, 0, 100) == 0);
  printf("all, held: %s\n", name(in_child(try_all)));
  CHECK(record(fd, F_SETLK, F_UNLCK, 40, 10) == 0);
  printf("middle, released: %s\n", name(in_child(try_middle)));
  CHECK(record(fd, F_SETLK, F_RDLCK, 0, 10) == 0);
  printf("read beside read: %s\n", name(in_child(try_read)));
  printf("holder named: %d\n", in_child(who_holds));
  printf("wait, interrupted: %s\n", name(in_child(wait_interrupted)));
  printf("wait, killed: %d\n", in_child(wait_killed));
  close(open_file());
  printf("released by closing another descriptor: %s\n", name(in_child(try_all)));
  close(fd);
}

/* A child waits; the parent unlocks; the child must come through. */
static void waiting(void) {
  int fd = open_file();
  CHECK(record(fd, F_SETLK, F_WRLCK, 0, 0) == 0);
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) _exit(wait_all(open_file()));
  usleep(200000);
  CHECK(record(fd, F_SETLK, F_UNLCK, 0, 0) == 0);
  int status;
  CHECK(waitpid(child, &status, 0) == child);
  printf("waiter: %s\n", name(WEXITSTATUS(status)));
  close(fd);
}

/* The holder is killed: its locks go, a waiter comes through. */
static void killed_holder(void) {
  int ready[2];
  CHECK(pipe(ready) == 0);
  pid_t holder = fork();
  CHECK(holder >= 0);
  if (holder == 0) {
    int fd = open_file();
    CHECK(wait_all(fd) == 0 && flock(fd, LOCK_EX) == 0);
    CHECK(write(ready[1], "x", 1) == 1);
    pause();
  }
  char byte;
  CHECK(read(ready[0], &byte, 1) == 1);
  printf("flock, held: %s\n", name(in_child(try_flock)));
  kill(holder, SIGKILL);
  printf("after the holder's death: %s", name(in_child(wait_all)));
  waitpid(holder, NULL, 0);
  printf(", flock %s\n", name(in_child(soon_flock)));
}

static void descriptions(void) {
  int fd = open_file();
  CHECK(record(fd, F_OFD_SETLK, F_WRLCK, 0, 10) == 0);
  int other = open_file();
  printf("another description of the same process: %s\n", name(try_ofd(other)));
  close(other);
  printf("still held after closing it: %s\n", name(in_child(try_ofd)));
  int copy = dup(fd);
  close(fd);
  printf("still held by a duplicate: %s\n", name(in_child(try_ofd)));
  close(copy);
  printf("released by the last close: %s\n", name(in_child(soon_ofd)));
}

static void flocks(void) {
  int fd = open_file();
  CHECK(flock(fd, LOCK_SH) == 0);
  int other = open_file();
  printf("shared beside shared: %s\n", flock(other, LOCK_SH | LOCK_NB) == 0 ? "ok" : "no");
  printf("upgrade against shared: %s\n", flock(fd, LOCK_EX | LOCK_NB) == 0 ? "ok" : name(errno));
  close(other);
  printf("upgrade alone: %s\n", name(soon_flock(fd)));
  printf("record locks do not mind: %s\n", name(in_child(try_all)));
  close(fd);
}

/* Processes that take turns, and release the lock by closing the file. */
static void turns(const char *kind, int (*take)(int)) {
  enum { PROCESSES = 4, TURNS = 200 };
  pid_t children[PROCESSES];
  int violated = 0;
  for (int i = 0; i < PROCESSES; i++) {
    children[i] = fork();
    CHECK(children[i] >= 0);
    if (children[i] != 0)
      continue;
    int alone = 1;
    for (int turn = 0; turn < TURNS; turn++) {
      int fd = open_file();
      CHECK(fd >= 0 && take(fd) == 0);
      int inside = open("inside", O_CREAT | O_EXCL | O_WRONLY, 0600);
      alone &= inside >= 0 && close(inside) == 0 && unlink("inside") == 0;
      close(fd);
    }
    _exit(alone ? 0 : 1);
  }
  for (int i = 0; i < PROCESSES; i++) {
    int status;
    CHECK(waitpid(children[i], &status, 0) == children[i]);
    violated += status != 0;
  }
  printf("%s: processes that were not alone in their turn: %d\n", kind, violated);
}

int main(void) {
  setvbuf(stdout, NULL, _IONBF, 0);
  records();
  waiting();
  killed_holder();
  descriptions();
  flocks();
  turns("flock", take_flock);
  turns("F_OFD_SETLKW", take_ofd);
  return 0;
}
