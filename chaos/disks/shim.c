/* A disk that fails as it is told, laid under the processes of one cluster by LD_PRELOAD.
 *
 * Only a process whose command line names ROOT/<node>/config.toml takes part, and only with files
 * below ROOT/<node>/. What to do stands in CONTROL/<node>.faults and is read at every call, so a
 * fault begins and ends while the process runs; each one that was felt is a line in <node>.hits.
 *
 *     <operation> <part of the path, or *> error <errno> <times, 0: always>
 *     <operation> <part of the path, or *> sleep <ms> 0
 *     write       <part of the path, or *> full  <bytes that still fit> 0
 *     sync        <part of the path, or *> lie   0 0
 *     clock       *                        ahead <seconds, may be negative> 0
 *
 * Operations: write (and making a file, for `full`), sync (fsync, fdatasync, syncfs), rename, clock.
 *
 * With QUORUMLOG_SHIM_TAPE set, everything needed to take unsynced pages and names away again goes
 * to <node>.tape (chaos/disks/tape.py reads it): the content before each change, what each
 * directory was told, where syncs began and that they succeeded. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096
#define PATHS 1024
#define LONGER (PATHS + 64)

static char base[PATHS], control[PATHS];
static char faults_path[LONGER], hits_path[LONGER], tape_path[LONGER];
static size_t base_length;
static int active, taping;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char known[4096];
static long used_bytes, used_times, backups;
static uint64_t sync_number;

#define REAL(name) \
    static __typeof__(&name) real; \
    if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

/* -- who we are */

__attribute__((constructor)) static void begin(void) {
    const char *root = getenv("QUORUMLOG_SHIM_ROOT"), *where = getenv("QUORUMLOG_SHIM_CONTROL");
    char line[8192], node[128];
    int fd = syscall(SYS_open, "/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
    if (!root || !where || fd < 0) return;
    ssize_t length = syscall(SYS_read, fd, line, sizeof line - 1);
    syscall(SYS_close, fd);
    size_t rooted = strlen(root);
    for (ssize_t at = 0; at < length; at += strlen(line + at) + 1) {
        const char *word = line + at;
        line[length] = 0;
        if (strncmp(word, root, rooted) || word[rooted] != '/') continue;
        const char *slash = strchr(word + rooted + 1, '/');
        if (!slash || strcmp(slash, "/config.toml")) continue;
        snprintf(node, sizeof node, "%.*s", (int)(slash - word - rooted - 1), word + rooted + 1);
        snprintf(base, sizeof base, "%s/%s/", root, node);
        base_length = strlen(base);
        snprintf(control, sizeof control, "%s/%s", where, node);
        snprintf(faults_path, sizeof faults_path, "%s.faults", control);
        snprintf(hits_path, sizeof hits_path, "%s.hits", control);
        snprintf(tape_path, sizeof tape_path, "%s.tape", control);
        taping = getenv("QUORUMLOG_SHIM_TAPE") != NULL;
        sync_number = (uint64_t)getpid() << 32;
        backups = (long)getpid() * 1000000;
        active = 1;
        return;
    }
}

static void append(const char *path, const void *data, size_t length) {
    int fd = syscall(SYS_open, path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (fd < 0) return;
    if (syscall(SYS_write, fd, data, length) < 0) {}
    syscall(SYS_close, fd);
}

static int below(const char *path) { return active && !strncmp(path, base, base_length); }

static int mine(int fd, char *path) {
    char link[64];
    if (!active || fd < 0) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, PATHS - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return below(path) || (!strncmp(path, base, base_length - 1) && !path[base_length - 1]);
}

/* -- faults */

typedef struct { char what[16]; long argument, times; } Fault;

static int find_fault(const char *operation, const char *path, Fault *found) {
    char text[sizeof known], *rest = NULL;
    int fd = syscall(SYS_open, faults_path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        known[0] = 0; /* it is well again */
        return 0;
    }
    ssize_t length = syscall(SYS_read, fd, text, sizeof text - 1);
    syscall(SYS_close, fd);
    if (length <= 0) return 0;
    text[length] = 0;
    if (strcmp(text, known)) { /* told something new: counts begin again */
        strcpy(known, text);
        used_bytes = used_times = 0;
    }
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        char name[16], part[256];
        if (sscanf(line, "%15s %255s %15s %ld %ld", name, part, found->what, &found->argument,
                   &found->times) != 5)
            continue;
        if (!strcmp(name, operation) && (!strcmp(part, "*") || strstr(path, part))) return 1;
    }
    return 0;
}

static void hit(const char *operation, const char *path, const char *what) {
    char line[PATHS + 64];
    int length = snprintf(line, sizeof line, "%s %s %s\n", operation, what, path);
    append(hits_path, line, length);
}

/* 0, or the errno that the call is to fail with, or -1: say that it was done. Sleeps here. */
static int suffer(const char *operation, const char *path) {
    Fault fault;
    int failed = 0;
    long wait_ms = 0;
    pthread_mutex_lock(&lock);
    if (find_fault(operation, path, &fault)) {
        if (!strcmp(fault.what, "error") && (!fault.times || used_times < fault.times)) {
            used_times++;
            failed = (int)fault.argument;
        } else if (!strcmp(fault.what, "sleep")) {
            wait_ms = fault.argument;
        } else if (!strcmp(fault.what, "lie")) {
            failed = -1;
        }
        if (failed || wait_ms) hit(operation, path, fault.what);
    }
    pthread_mutex_unlock(&lock);
    if (wait_ms) {
        struct timespec left = {wait_ms / 1000, wait_ms % 1000 * 1000000};
        while (nanosleep(&left, &left) && errno == EINTR) {}
    }
    return failed;
}

/* How much of a write that makes the file this much longer fits; -1 where all does. */
static long room(const char *path, size_t growth) {
    Fault fault;
    long fits = -1;
    pthread_mutex_lock(&lock);
    if (find_fault("write", path, &fault) && !strcmp(fault.what, "full")) {
        long left = fault.argument > used_bytes ? fault.argument - used_bytes : 0;
        if ((long)growth > left) {
            fits = left;
            hit("write", path, "full");
        }
        used_bytes += fits < 0 ? (long)growth : fits;
    }
    pthread_mutex_unlock(&lock);
    return fits;
}

/* -- the tape */

typedef struct __attribute__((packed)) {
    char kind;
    uint64_t inode, first, second, size;
    uint32_t path_length, other_length, data_length;
} Entry;

static void tape(char kind, uint64_t inode, uint64_t first, uint64_t second, uint64_t size,
                 const char *path, const char *other, const void *data, size_t length) {
    Entry entry = {kind, inode, first, second, size, strlen(path), strlen(other), length};
    size_t total = sizeof entry + entry.path_length + entry.other_length + length;
    char *all = malloc(total), *at = all;
    memcpy(at, &entry, sizeof entry);
    memcpy(at += sizeof entry, path, entry.path_length);
    memcpy(at += entry.path_length, other, entry.other_length);
    if (length) memcpy(at + entry.other_length, data, length);
    append(tape_path, all, total);
    free(all);
}

/* Before [from, to) of a file changes: what stands in those pages. */
static void keep_pages(int fd, const char *path, uint64_t from, uint64_t to) {
    struct stat now;
    if (!taping || from >= to || fstat(fd, &now) || !S_ISREG(now.st_mode)) return;
    uint64_t first = from / PAGE * PAGE, size = now.st_size;
    uint64_t last = to > size ? size : (to + PAGE - 1) / PAGE * PAGE;
    if (last > size) last = size;
    size_t length = first < last ? last - first : 0;
    char *old = malloc(length + 1);
    if (length) {
        int again = syscall(SYS_open, path, O_RDONLY | O_CLOEXEC);
        ssize_t got = again < 0 ? -1 : syscall(SYS_pread64, again, old, length, first);
        if (again >= 0) syscall(SYS_close, again);
        length = got < 0 ? 0 : got;
    }
    tape('W', now.st_ino, from, to, size, path, "", old, length);
    free(old);
}

static void keep_name(const char *path, char *backup) {
    backup[0] = 0;
    if (access(path, F_OK)) return;
    snprintf(backup, LONGER, "%s.backup-%ld", control, ++backups);
    if (link(path, backup)) backup[0] = 0;
}

static int synced(const char *operation, int fd, int all, int (*real)(int)) {
    char path[PATHS];
    struct stat now;
    if (!mine(fd, path)) return real(fd);
    pthread_mutex_lock(&lock);
    uint64_t number = ++sync_number;
    pthread_mutex_unlock(&lock);
    int known_file = !fstat(fd, &now);
    uint64_t inode = all || !known_file ? 0 : now.st_ino;
    if (taping) tape('B', inode, number, 0, 0, path, "", NULL, 0);
    int failed = suffer(operation, path);
    if (failed < 0) return 0;
    if (failed) {
        errno = failed;
        return -1;
    }
    int result = real(fd);
    if (taping && !result) tape('S', inode, number, 0, 0, path, "", NULL, 0);
    return result;
}

/* -- the calls */

int fsync(int fd) { REAL(fsync); return synced("sync", fd, 0, real); }
int fdatasync(int fd) { REAL(fdatasync); return synced("sync", fd, 0, real); }
int syncfs(int fd) { REAL(syncfs); return synced("sync", fd, 1, real); }

/* Length to write, or -1 with errno. */
static long before_write(int fd, const char *path, size_t length, uint64_t position) {
    struct stat now;
    int failed = suffer("write", path);
    if (failed) {
        errno = failed;
        return -1;
    }
    uint64_t size = fstat(fd, &now) ? 0 : now.st_size;
    uint64_t growth = position + length > size ? position + length - size : 0;
    long fits = growth ? room(path, growth) : -1;
    if (fits >= 0) {
        length -= growth - fits;
        if (!length) {
            errno = ENOSPC;
            return -1;
        }
    }
    keep_pages(fd, path, position, position + length);
    return length;
}

ssize_t pwrite64(int fd, const void *data, size_t length, off64_t position) {
    REAL(pwrite64);
    char path[PATHS];
    if (mine(fd, path)) {
        long fits = before_write(fd, path, length, position);
        if (fits < 0) return -1;
        length = fits;
    }
    return real(fd, data, length, position);
}
ssize_t pwrite(int fd, const void *data, size_t length, off_t position) {
    return pwrite64(fd, data, length, position);
}

ssize_t pwritev64(int fd, const struct iovec *parts, int count, off64_t position) {
    REAL(pwritev64);
    char path[PATHS];
    if (!mine(fd, path)) return real(fd, parts, count, position);
    ssize_t done = 0;
    for (int at = 0; at < count; at++) {
        ssize_t part = pwrite64(fd, parts[at].iov_base, parts[at].iov_len, position + done);
        if (part < 0) return done ? done : -1;
        done += part;
        if ((size_t)part < parts[at].iov_len) return done;
    }
    return done;
}
ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t position) {
    return pwritev64(fd, parts, count, position);
}
ssize_t pwritev64v2(int fd, const struct iovec *parts, int count, off64_t position, int flags) {
    REAL(pwritev64v2);
    char path[PATHS];
    if (!mine(fd, path)) return real(fd, parts, count, position, flags);
    return pwritev64(fd, parts, count, position);
}

ssize_t write(int fd, const void *data, size_t length) {
    REAL(write);
    char path[PATHS];
    struct stat now;
    if (mine(fd, path) && !fstat(fd, &now) && S_ISREG(now.st_mode)) {
        int flags = fcntl(fd, F_GETFL);
        off64_t position = flags & O_APPEND ? now.st_size : lseek64(fd, 0, SEEK_CUR);
        long fits = before_write(fd, path, length, position);
        if (fits < 0) return -1;
        length = fits;
    }
    return real(fd, data, length);
}

int ftruncate64(int fd, off64_t size) {
    REAL(ftruncate64);
    char path[PATHS];
    struct stat now;
    if (mine(fd, path) && !fstat(fd, &now)) {
        uint64_t old = now.st_size, new = size;
        keep_pages(fd, path, old < new ? old : new, old > new ? old : new);
    }
    return real(fd, size);
}
int ftruncate(int fd, off_t size) { return ftruncate64(fd, size); }

static int opened(const char *path, int flags, mode_t mode, int (*real)(const char *, int, ...)) {
    if (!below(path) || !(flags & (O_CREAT | O_TRUNC))) return real(path, flags, mode);
    int there = !access(path, F_OK);
    if (!there && room(path, 1) >= 0) {
        errno = ENOSPC;
        return -1;
    }
    if (taping && there && flags & O_TRUNC) {
        int old = syscall(SYS_open, path, O_RDONLY | O_CLOEXEC);
        struct stat now;
        if (old >= 0 && !fstat(old, &now)) keep_pages(old, path, 0, now.st_size);
        if (old >= 0) syscall(SYS_close, old);
    }
    int fd = real(path, flags, mode);
    if (taping && !there && fd >= 0) tape('C', 0, 0, 0, 0, path, "", NULL, 0);
    return fd;
}

int open64(const char *path, int flags, ...) {
    REAL(open64);
    va_list rest;
    va_start(rest, flags);
    mode_t mode = va_arg(rest, mode_t);
    va_end(rest);
    return opened(path, flags, mode, real);
}
int open(const char *path, int flags, ...) {
    REAL(open);
    va_list rest;
    va_start(rest, flags);
    mode_t mode = va_arg(rest, mode_t);
    va_end(rest);
    return opened(path, flags, mode, real);
}

int rename(const char *source, const char *target) {
    REAL(rename);
    char backup[LONGER] = "", both[2 * LONGER];
    if (!below(target)) return real(source, target);
    int failed = suffer("rename", target);
    if (failed) {
        errno = failed;
        return -1;
    }
    if (taping) keep_name(target, backup);
    int result = real(source, target);
    if (taping && !result) {
        snprintf(both, sizeof both, "%s\n%s", source, backup);
        tape('R', 0, 0, 0, 0, target, both, NULL, 0);
    }
    return result;
}

int unlink(const char *path) {
    REAL(unlink);
    char backup[LONGER] = "";
    if (!below(path)) return real(path);
    if (taping) keep_name(path, backup);
    int result = real(path);
    if (taping && !result) tape('U', 0, 0, 0, 0, path, backup, NULL, 0);
    return result;
}

int mkdir(const char *path, mode_t mode) {
    REAL(mkdir);
    int result = real(path, mode);
    if (!result && taping && below(path)) tape('D', 0, 0, 0, 0, path, "", NULL, 0);
    return result;
}

int clock_gettime(clockid_t which, struct timespec *now) {
    Fault fault;
    long result = syscall(SYS_clock_gettime, which, now);
    if (result || which != CLOCK_REALTIME || !active) return (int)result;
    pthread_mutex_lock(&lock);
    if (find_fault("clock", "*", &fault) && !strcmp(fault.what, "ahead")) {
        now->tv_sec += fault.argument;
        if (used_times++ == 0) hit("clock", "*", "ahead");
    }
    pthread_mutex_unlock(&lock);
    return 0;
}
