/* The yardstick of echoes in bench/parts/inproc.py: two threads of one process that pass a word to each
   other, there and back, and do nothing else. On one core each lets the other run with sched_yield,
   on two it spins.

   handoff CORES     prints "ready"; for each line of its input, a JSON object that has
                     "milliseconds", passes the word for so long and prints one object

   What it needs is the least that any exchange of messages between two threads can need here. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { LINE = 128, BATCH = 64 };

#define OVER UINT64_MAX

static _Alignas(LINE) _Atomic uint64_t there;
static _Alignas(LINE) _Atomic uint64_t back;
static _Alignas(LINE) int yielding;

static void await(_Atomic uint64_t *word, uint64_t value) {
  for (;;) {
    uint64_t seen = atomic_load_explicit(word, memory_order_acquire);
    if (seen == value || seen == OVER) return;
    if (yielding) {
      sched_yield();
    } else {
#ifdef __x86_64__
      __builtin_ia32_pause();
#endif
    }
  }
}

static void *answer(void *nothing) {
  for (uint64_t round = 1; atomic_load(&there) != OVER; round++) {
    await(&there, round);
    atomic_store_explicit(&back, round, memory_order_release);
  }
  return nothing;
}

static uint64_t nanoseconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* Passes the word for so long; both threads are there for no longer than that. */
static void measure(uint64_t milliseconds) {
  pthread_t thread;
  uint64_t rounds = 0, begin = nanoseconds(), now = begin;
  atomic_store(&there, 0);
  atomic_store(&back, 0);
  if (pthread_create(&thread, NULL, answer, NULL) != 0) exit(1);
  while (now < begin + 1000000 * milliseconds) {
    for (int i = 0; i < BATCH; i++) {
      rounds++;
      atomic_store_explicit(&there, rounds, memory_order_release);
      await(&back, rounds);
    }
    now = nanoseconds();
  }
  atomic_store(&there, OVER);
  pthread_join(thread, NULL);
  printf("{\"operations\": %llu, \"ns\": %.2f}\n", (unsigned long long)rounds,
         (double)(now - begin) / (double)rounds);
}

int main(int count, char **arguments) {
  char line[512];
  yielding = count > 1 && atoi(arguments[1]) == 1;
  printf("ready\n");
  fflush(stdout);
  while (fgets(line, sizeof line, stdin)) {
    const char *field = strstr(line, "\"milliseconds\":");
    measure(field ? strtoull(strchr(field, ':') + 1, NULL, 10) : 0);
    fflush(stdout);
  }
  return 0;
}
