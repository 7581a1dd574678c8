/* Mappings of one file by two processes, and read, write and truncate beside them. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define SIZE (1 << 20)
#define CHECK(what) do { if (!(what)) { perror(#what); exit(1); } } while (0)

static volatile unsigned *map_shared(const char *name, int flags) {
  int fd = open(name, flags, 0644);
  CHECK(fd >= 0);
  CHECK(ftruncate(fd, SIZE) == 0);
  void *at = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  CHECK(at != MAP_FAILED);
  close(fd);
  return at;
}

/* Two processes count up in turn through the mapping. */
static void ping_pong(void) {
  pid_t child = fork();
  CHECK(child >= 0);
  volatile unsigned *words = map_shared("shared", O_RDWR | O_CREAT);
  unsigned parity = child == 0;
  for (unsigned i = 0; i < 200; i++) {
    while (__atomic_load_n(words, __ATOMIC_ACQUIRE) % 2 != parity) usleep(10);
    words[1 + i] = i;
    __atomic_fetch_add(words, 1, __ATOMIC_RELEASE);
  }
  if (child == 0) _exit(0);
  int status;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  printf("counted to %u\n", words[0]);
  CHECK(msync((void *)words, SIZE, MS_SYNC) == 0);
}

static void beside_read_and_write(void) {
  unsigned counted = 0;
  int fd = open("shared", O_RDWR);
  CHECK(fd >= 0);
  CHECK(pread(fd, &counted, sizeof counted, 0) == sizeof counted);
  printf("read sees %u\n", counted);
  volatile unsigned *words = map_shared("shared", O_RDWR);
  unsigned value = 12345;
  CHECK(pwrite(fd, &value, sizeof value, 8192) == sizeof value);
  printf("mapping sees %u\n", words[2048]);
  words[4096] = 777;
  CHECK(msync((void *)words, SIZE, MS_SYNC) == 0);
  CHECK(pread(fd, &value, sizeof value, 16384) == sizeof value);
  printf("read after msync sees %u\n", value);
  char *private = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
  CHECK(private != MAP_FAILED);
  memset(private, 'x', 100);
  CHECK(pread(fd, &value, sizeof value, 0) == sizeof value);
  printf("a private mapping changes nothing: %u\n", value);
  close(fd);
}

static void truncate_beside_mapping(void) {
  volatile unsigned *words = map_shared("cut", O_RDWR | O_CREAT);
  words[0] = 1;
  words[1024] = 2;
  CHECK(truncate("cut", 4096) == 0);
  CHECK(truncate("cut", 8192) == 0);
  printf("after truncate: %u %u\n", words[0], words[1024]);
  CHECK(unlink("cut") == 0);
  words[1] = 5;
  printf("unlinked, still mapped: %u\n", words[1]);
}

int main(void) {
  setvbuf(stdout, NULL, _IONBF, 0);
  ping_pong();
  beside_read_and_write();
  truncate_beside_mapping();
  return 0;
}
