/* Asynchronous O_DIRECT writes beside buffered readers of the same pages: direct FILE SECONDS. When a write has
 * been acknowledged, a buffered read shows it; a store through a mapping, made afterwards into the tail of the
 * page, that is written back does not undo it. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096
#define PAGES 16
#define READERS 3
/* The writer has the head of each page, the mapping its tail. */
#define HEAD 2048
#define CHECK(what) do { if (!(what)) { perror(#what); exit(1); } } while (0)

static const char *name;
static atomic_int over;

static void *read_on(void *unused) {
  (void)unused;
  char page[PAGE];
  int fd = open(name, O_RDONLY);
  CHECK(fd >= 0);
  for (unsigned at = 0; !atomic_load(&over); at++)
    CHECK(pread(fd, page, PAGE, (off_t)(at % PAGES) * PAGE) == PAGE);
  close(fd);
  return NULL;
}

static aio_context_t context;

/* Writes the heads of all pages at once and returns when all are acknowledged. */
static void write_all(int fd, char *buffer, unsigned round) {
  struct iocb writes[PAGES], *list[PAGES];
  struct io_event events[PAGES];
  memset(writes, 0, sizeof writes);
  for (unsigned n = 0; n < PAGES; n++) {
    char *from = buffer + n * PAGE;
    for (unsigned i = 0; i < HEAD / sizeof round; i++) memcpy(from + i * sizeof round, &round, sizeof round);
    writes[n].aio_lio_opcode = IOCB_CMD_PWRITE;
    writes[n].aio_fildes = fd;
    writes[n].aio_buf = (unsigned long)from;
    writes[n].aio_nbytes = HEAD;
    writes[n].aio_offset = (long long)n * PAGE;
    list[n] = &writes[n];
  }
  for (int sent = 0; sent < PAGES;) {
    long more = syscall(SYS_io_submit, context, (long)(PAGES - sent), list + sent);
    CHECK(more > 0);
    sent += more;
  }
  for (int done = 0; done < PAGES;) {
    long more = syscall(SYS_io_getevents, context, 1L, (long)(PAGES - done), events, NULL);
    CHECK(more > 0);
    for (long i = 0; i < more; i++)
      if (events[i].res != HEAD) { printf("a write came to %lld\n", (long long)events[i].res); exit(1); }
    done += more;
  }
}

static unsigned long stale, lost;

static void check(int fd, char *page, unsigned round, unsigned long *wrong) {
  for (unsigned n = 0; n < PAGES; n++) {
    unsigned found;
    CHECK(pread(fd, page, PAGE, (off_t)n * PAGE) == PAGE);
    memcpy(&found, page, sizeof found);
    if (found != round) ++*wrong;
  }
}

int main(int count, char **arguments) {
  CHECK(count == 3);
  name = arguments[1];
  time_t end = time(NULL) + atoi(arguments[2]);
  int buffered = open(name, O_RDWR | O_CREAT, 0644);
  CHECK(buffered >= 0 && ftruncate(buffered, PAGES * PAGE) == 0);
  int direct = open(name, O_RDWR | O_DIRECT);
  CHECK(direct >= 0);
  char *buffer, *page;
  CHECK(posix_memalign((void **)&buffer, PAGE, PAGES * PAGE) == 0);
  CHECK(posix_memalign((void **)&page, PAGE, PAGE) == 0);
  char *mapped = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, buffered, 0);
  CHECK(mapped != MAP_FAILED);
  CHECK(syscall(SYS_io_setup, PAGES, &context) == 0);
  pthread_t readers[READERS];
  for (int i = 0; i < READERS; i++) CHECK(pthread_create(&readers[i], NULL, read_on, NULL) == 0);
  unsigned round = 0;
  while (time(NULL) < end) {
    write_all(direct, buffer, ++round);
    check(buffered, page, round, &stale);
    for (unsigned n = 0; n < PAGES; n++) mapped[n * PAGE + PAGE - 1] = (char)round;
    CHECK(msync(mapped, PAGES * PAGE, MS_SYNC) == 0);
    check(direct, page, round, &lost);
  }
  atomic_store(&over, 1);
  for (int i = 0; i < READERS; i++) CHECK(pthread_join(readers[i], NULL) == 0);
  printf("%u rounds of %d writes: %lu stale after the acknowledgement, %lu lost\n", round, PAGES, stale, lost);
  return round == 0 || stale + lost > 0;
}
