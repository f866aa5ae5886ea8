/* A library to preload: the Nth call of a chosen kind fails, or does half of what was asked.
 *
 *   FAULT=pwrite:3:ENOSPC   kinds: write pwrite fsync fallocate rename link
 *   FAULT=write:1:SHORT     half of the bytes, and no error
 *
 *   JUMP=86400              the wall clock leaps so many seconds ahead and back again, call by call
 *
 * and what the program itself calls: `fault(text)` begins to count anew, with another FAULT; after `arm(n)` allocations of n
 * bytes and more give nothing.
 *
 * Only calls on files that are being made count: descriptors above 2 and open for writing on a regular file. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const char *kind = "";
static char kind_[16];
static long at = -1, seen = 0;
static int code = 0, cut = 0;

void fault(const char *text) {
    seen = 0;
    const char *colon = strchr(text, ':');
    if (!colon || colon - text > 15) return;
    memcpy(kind_, text, colon - text);
    kind_[colon - text] = 0;
    kind = kind_;
    at = strtol(colon + 1, NULL, 10);
    colon = strchr(colon + 1, ':');
    if (!colon) return;
    cut = !strcmp(colon + 1, "SHORT");
    code = !strcmp(colon + 1, "ENOSPC") ? ENOSPC : !strcmp(colon + 1, "EIO") ? EIO : EINTR;
}

__attribute__((constructor)) static void read_fault(void) {
    if (getenv("FAULT")) fault(getenv("FAULT"));
}

static int regular(int fd) {
    struct stat s;
    int flags = fcntl(fd, F_GETFL);
    return fd > 2 && flags >= 0 && (flags & O_ACCMODE) != O_RDONLY && !fstat(fd, &s) && S_ISREG(s.st_mode);
}

static int hit(const char *what) { return !strcmp(kind, what) && ++seen == at; }

#define REAL(name) __typeof__(&name) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

ssize_t write(int fd, const void *data, size_t n) {
    REAL(write);
    if (regular(fd) && hit("write")) {
        if (cut) return real(fd, data, n > 1 ? n / 2 : n);
        errno = code;
        return -1;
    }
    return real(fd, data, n);
}

static ssize_t place(ssize_t (*real)(int, const void *, size_t, off_t), int fd, const void *data, size_t n, off_t o) {
    if (regular(fd) && hit("pwrite")) {
        if (cut) return real(fd, data, n > 1 ? n / 2 : n, o);
        errno = code;
        return -1;
    }
    return real(fd, data, n, o);
}

ssize_t pwrite(int fd, const void *data, size_t n, off_t o) {
    REAL(pwrite);
    return place(real, fd, data, n, o);
}

ssize_t pwrite64(int fd, const void *data, size_t n, off64_t o) {
    ssize_t (*real)(int, const void *, size_t, off_t) = dlsym(RTLD_NEXT, "pwrite64");
    return place(real, fd, data, n, o);
}

int fsync(int fd) {
    REAL(fsync);
    if (regular(fd) && hit("fsync")) { errno = code; return -1; }
    return real(fd);
}

int posix_fallocate(int fd, off_t o, off_t n) {
    REAL(posix_fallocate);
    return hit("fallocate") ? code : real(fd, o, n);
}

int posix_fallocate64(int fd, off64_t o, off64_t n) {
    REAL(posix_fallocate64);
    return hit("fallocate") ? code : real(fd, o, n);
}

int rename(const char *a, const char *b) {
    REAL(rename);
    if (hit("rename")) { errno = code; return -1; }
    return real(a, b);
}

int linkat(int d, const char *a, int e, const char *b, int flags) {
    REAL(linkat);
    if (hit("link")) { errno = code; return -1; }
    return real(d, a, e, b, flags);
}

static size_t most = 0;
void arm(size_t n) { most = n; }

void *malloc(size_t n) {
    static void *(*real)(size_t);
    if (!real) real = (void *(*)(size_t))dlsym(RTLD_NEXT, "malloc");
    if (most && n >= most) { errno = ENOMEM; return NULL; }
    return real(n);
}

static long jump(void) {
    static long far = -1;
    static unsigned calls = 0;
    if (far < 0) far = getenv("JUMP") ? atol(getenv("JUMP")) : 0;
    if (!far) return 0;
    unsigned n = __atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED) % 3;
    return n == 1 ? far : n == 2 ? -far : 0;
}

int clock_gettime(clockid_t clock, struct timespec *out) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(clock, out);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) out->tv_sec += jump();
    return failed;
}

int gettimeofday(struct timeval *restrict out, void *restrict zone) {
    static int (*real)(struct timeval *, void *);
    if (!real) real = (int (*)(struct timeval *, void *))dlsym(RTLD_NEXT, "gettimeofday");
    int failed = real(out, zone);
    if (!failed) out->tv_sec += jump();
    return failed;
}

time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}
