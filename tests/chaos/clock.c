/* Another clock for the processes that preload it: the time of day, CHAOS_CLOCK_S seconds ahead. Durations stay right. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

int clock_gettime(clockid_t id, struct timespec *now) {
  static int (*real)(clockid_t, struct timespec *);
  if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
  int failed = real(id, now);
  const char *ahead_s = getenv("CHAOS_CLOCK_S");
  if (!failed && ahead_s && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) now->tv_sec += atol(ahead_s);
  return failed;
}

int gettimeofday(struct timeval *now, void *zone) {
  struct timespec exact;
  (void)zone;
  clock_gettime(CLOCK_REALTIME, &exact);
  now->tv_sec = exact.tv_sec;
  now->tv_usec = exact.tv_nsec / 1000;
  return 0;
}

time_t time(time_t *kept) {
  struct timespec exact;
  clock_gettime(CLOCK_REALTIME, &exact);
  if (kept) *kept = exact.tv_sec;
  return exact.tv_sec;
}
