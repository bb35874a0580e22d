/* Between a node and its disk and clock: what a power loss would undo, and faults on order.
 *
 * What lives here: the calls of libc that a node's files and its wall clock go through, preloaded
 * (LD_PRELOAD). What must not: when a fault is done (the control file says so, chaos/targets), and
 * which of the unsynced writes are undone (undo.py).
 *
 * SHIM_DIRECTORY  whose files are watched; all others are none of our business
 * SHIM_CONTROL    `struct control`, mapped; the experiment writes it while the node runs
 * SHIM_UNDO       the undo log: before a file or name changes, what it was; after an fsync, that
 *                 all before it is durable. SHIM_UNDO.kept/ holds removed and replaced files.
 *
 * SIGKILL leaves the log and the files in the kernel's cache. Undoing the records behind the last
 * fsync of their file or directory, newest first, is what a machine without power would have done.
 * The log is written before the deed: undoing what did not happen any more changes nothing.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define FDS_MAX 65536             /* descriptors above are not watched: a node has far fewer files */
#define UNDO_BYTES_MAX (1L << 28) /* over it all is taken for durable, as a kernel may do any time */
#define PATH_BYTES_MAX 4096

#define EXPORT __attribute__((visibility("default")))
#define REAL(name)                                             \
    ({                                                         \
        static __typeof__(&name) found;                        \
        if (!found) found = (__typeof__(&name))real(#name);    \
        found;                                                 \
    })

struct control { /* __init__.py writes it: same order, each a little-endian int64 */
    int64_t clock_ns;   /* added to the wall clock */
    int64_t sync_ms;    /* an fsync takes so much longer */
    int64_t sync_fails; /* not 0: every fsync reports EIO, and makes nothing durable */
    int64_t space_bytes; /* what files may still grow by; below 0: as far as the disk allows */
    int64_t log_syncs_failed; /* counted here: fsyncs of a journal that have reported EIO */
    int64_t writes_refused;   /* counted here: writes that have reported ENOSPC */
};

enum kind { BYTES = 1, SYNCED = 2, CREATED = 3, RENAMED = 4, REMOVED = 5 };

struct record { /* undo.py reads it; behind it stand the names and the old bytes */
    uint32_t kind, first_name_bytes, second_name_bytes, new_bytes;
    uint64_t inode;    /* the file's, or for CREATED, RENAMED, REMOVED the directory's */
    uint64_t offset;   /* BYTES: where; SYNCED: records before this place in the log are durable */
    uint64_t old_size, old_bytes;
};

static struct control *control;
static const char *directory, *undo_path;
static size_t directory_bytes;
static int undo_fd = -1;
static uint64_t undo_end, undo_generation;
enum watch { NOT_OURS, OURS, JOURNAL };
static unsigned char watched[FDS_MAX]; /* enum watch */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void *real(const char *name) {
    void *found = dlsym(RTLD_NEXT, name);
    if (!found) abort();
    return found;
}

static void die(const char *what) { /* a fault that cannot be recorded must not look like a run */
    dprintf(2, "shim: %s: %s\n", what, strerror(errno));
    _exit(71);
}

__attribute__((constructor)) static void begin(void) {
    const char *control_path = getenv("SHIM_CONTROL");
    struct stat info;
    directory = getenv("SHIM_DIRECTORY");
    undo_path = getenv("SHIM_UNDO");
    if (!directory || !control_path || !undo_path) return;
    directory_bytes = strlen(directory);
    int fd = REAL(open)(control_path, O_RDWR | O_CLOEXEC);
    if (fd < 0) die(control_path);
    void *mapped = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (mapped == MAP_FAILED) die(control_path);
    REAL(close)(fd);
    char kept[PATH_BYTES_MAX];
    snprintf(kept, sizeof kept, "%s.kept", undo_path);
    if (mkdir(kept, 0700) && errno != EEXIST) die(kept);
    undo_fd = REAL(open)(undo_path, O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (undo_fd < 0 || fstat(undo_fd, &info)) die(undo_path);
    undo_end = info.st_size;
    control = mapped;
}

/* --- what is watched ------------------------------------------------------------------------- */

static int is_ours(const char *path) {
    if (!control || strncmp(path, directory, directory_bytes)) return 0;
    if (path[directory_bytes] && path[directory_bytes] != '/') return 0;
    size_t bytes = strlen(path); /* SQLite's -shm is memory: it is made anew after a power loss */
    return bytes < 4 || strcmp(path + bytes - 4, "-shm");
}

/* Of other files' fsyncs (a copy's, say) a node may take a failure and go on. */
static enum watch watch_of(const char *path) {
    size_t bytes = strlen(path);
    return bytes > 4 && !strcmp(path + bytes - 4, ".log") ? JOURNAL : OURS;
}

static int is_watched(int fd) { return fd >= 0 && fd < FDS_MAX && watched[fd]; }

static uint64_t parent_inode(const char *path) {
    char parent[PATH_BYTES_MAX];
    struct stat info;
    snprintf(parent, sizeof parent, "%s", path);
    char *slash = strrchr(parent, '/');
    if (slash) *slash = 0;
    return stat(parent, &info) ? 0 : info.st_ino;
}

/* --- the undo log: called with the lock held --------------------------------------------------- */

static void append(struct record *record, const char *first, const char *second, void *old) {
    record->first_name_bytes = first ? strlen(first) : 0;
    record->second_name_bytes = second ? strlen(second) : 0;
    struct iovec parts[] = {{record, sizeof *record},
                            {(void *)first, record->first_name_bytes},
                            {(void *)second, record->second_name_bytes},
                            {old, record->old_bytes}};
    ssize_t bytes = 0;
    for (int i = 0; i < 4; i++) bytes += parts[i].iov_len;
    if (REAL(writev)(undo_fd, parts, 4) != bytes) die(undo_path);
    undo_end += bytes;
}

static void synced(uint64_t inode, uint64_t until) {
    struct record record = {.kind = SYNCED, .inode = inode, .offset = until};
    append(&record, NULL, NULL, NULL);
}

static void kept_path(char *path, uint64_t inode, uint64_t place) {
    snprintf(path, PATH_BYTES_MAX, "%s.kept/%lu-%lu", undo_path, inode, place);
}

/* Let go of files that a directory has durably lost. Their inodes may come back as others'. */
static void let_go(uint64_t inode, uint64_t until) {
    char path[PATH_BYTES_MAX + 300];
    snprintf(path, sizeof path, "%s.kept", undo_path);
    DIR *kept = opendir(path);
    for (struct dirent *entry; kept && (entry = readdir(kept));) {
        uint64_t of, place;
        struct stat info;
        if (sscanf(entry->d_name, "%lu-%lu", &of, &place) != 2) continue;
        if ((inode && of != inode) || place >= until) continue;
        snprintf(path, sizeof path, "%s.kept/%s", undo_path, entry->d_name);
        if (!stat(path, &info) && info.st_nlink == 1) synced(info.st_ino, undo_end);
        REAL(unlink)(path);
    }
    if (kept) closedir(kept);
}

static void bound_log(void) {
    if (undo_end < UNDO_BYTES_MAX) return;
    let_go(0, UINT64_MAX);
    if (REAL(ftruncate)(undo_fd, 0)) die(undo_path);
    undo_end = 0;
    undo_generation++;
}

/* Read what a descriptor's file holds, although it may be open for writing alone. */
static char *read_old(int fd, uint64_t bytes, uint64_t offset) {
    char path[64], *old = malloc(bytes);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int readable = REAL(open)(path, O_RDONLY | O_CLOEXEC);
    if (!old || readable < 0 || REAL(pread)(readable, old, bytes, offset) != (ssize_t)bytes)
        die("what was there");
    REAL(close)(readable);
    return old;
}

/* Record that [offset, offset + length) of a file changes, or its size, if `length` is 0. */
static void will_change(int fd, uint64_t offset, uint64_t length, const struct stat *info) {
    struct record record = {.kind = BYTES, .inode = info->st_ino, .offset = offset};
    uint64_t size = info->st_size, end = length ? offset + length : size;
    char *old = NULL;
    record.new_bytes = length;
    record.old_size = size;
    if (end > size) end = size;
    if (offset < end) {
        record.old_bytes = end - offset;
        old = read_old(fd, record.old_bytes, offset);
    }
    append(&record, NULL, NULL, old);
    free(old);
    bound_log();
}

/* --- bytes --------------------------------------------------------------------------------------- */

static int take_space(uint64_t end, uint64_t size) {
    int64_t growth = end > size ? end - size : 0, left = control->space_bytes;
    if (left < 0 || !growth) return 1;
    if (growth > left) {
        control->writes_refused++;
        return 0;
    }
    control->space_bytes = left - growth;
    return 1;
}

/* Return 0 if the write may go on; `offset` below 0 means where the descriptor stands. */
static int before_write(int fd, int64_t offset, uint64_t length) {
    struct stat info;
    if (fstat(fd, &info) || !S_ISREG(info.st_mode) || !length) return 0;
    if (offset < 0) {
        int appends = fcntl(fd, F_GETFL) & O_APPEND;
        offset = appends ? info.st_size : lseek(fd, 0, SEEK_CUR);
    }
    if (!take_space(offset + length, info.st_size)) {
        errno = ENOSPC;
        return -1;
    }
    will_change(fd, offset, length, &info);
    return 0;
}

#define GUARDED(fd, offset, length, call)                        \
    if (!is_watched(fd)) return call;                            \
    pthread_mutex_lock(&lock);                                   \
    ssize_t done = before_write(fd, offset, length) ? -1 : call; \
    pthread_mutex_unlock(&lock);                                 \
    return done;

EXPORT ssize_t write(int fd, const void *bytes, size_t length) {
    GUARDED(fd, -1, length, REAL(write)(fd, bytes, length))
}

EXPORT ssize_t writev(int fd, const struct iovec *parts, int count) {
    size_t length = 0;
    for (int i = 0; i < count; i++) length += parts[i].iov_len;
    GUARDED(fd, -1, length, REAL(writev)(fd, parts, count))
}

EXPORT ssize_t pwrite(int fd, const void *bytes, size_t length, off_t offset) {
    GUARDED(fd, offset, length, REAL(pwrite)(fd, bytes, length, offset))
}

EXPORT ssize_t pwrite64(int fd, const void *bytes, size_t length, off64_t offset) {
    return pwrite(fd, bytes, length, offset);
}

EXPORT int ftruncate(int fd, off_t size) {
    struct stat info;
    if (!is_watched(fd)) return REAL(ftruncate)(fd, size);
    pthread_mutex_lock(&lock);
    int done = -1;
    if (!fstat(fd, &info)) {
        if (take_space(size, info.st_size)) {
            will_change(fd, size, 0, &info);
            done = REAL(ftruncate)(fd, size);
        } else {
            errno = ENOSPC;
        }
    }
    pthread_mutex_unlock(&lock);
    return done;
}

EXPORT int ftruncate64(int fd, off64_t size) { return ftruncate(fd, size); }

static int sync_with(int fd, int (*call)(int)) {
    struct stat info;
    if (!is_watched(fd)) return call(fd);
    pthread_mutex_lock(&lock);
    uint64_t until = undo_end, generation = undo_generation;
    int64_t ms = control->sync_ms;
    pthread_mutex_unlock(&lock);
    if (ms > 0) nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL);
    if (control->sync_fails) {
        pthread_mutex_lock(&lock);
        if (watched[fd] == JOURNAL) control->log_syncs_failed++;
        pthread_mutex_unlock(&lock);
        errno = EIO;
        return -1;
    }
    int done = call(fd);
    if (done || fstat(fd, &info)) return done;
    pthread_mutex_lock(&lock);
    if (generation == undo_generation) {
        synced(info.st_ino, until);
        if (S_ISDIR(info.st_mode)) let_go(info.st_ino, until);
    }
    pthread_mutex_unlock(&lock);
    return done;
}

EXPORT int fsync(int fd) { return sync_with(fd, REAL(fsync)); }
EXPORT int fdatasync(int fd) { return sync_with(fd, REAL(fdatasync)); }

/* --- names --------------------------------------------------------------------------------------- */

EXPORT int open(const char *path, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;
    va_end(rest);
    if (!is_ours(path)) return REAL(open)(path, flags, mode);
    pthread_mutex_lock(&lock);
    if (flags & O_CREAT && access(path, F_OK)) {
        struct record record = {.kind = CREATED, .inode = parent_inode(path)};
        append(&record, path, NULL, NULL);
    }
    int fd = REAL(open)(path, flags & ~O_TRUNC, mode);
    if (fd >= 0 && fd < FDS_MAX) watched[fd] = watch_of(path);
    pthread_mutex_unlock(&lock);
    if (fd >= 0 && flags & O_TRUNC && ftruncate(fd, 0)) die(path);
    return fd;
}

EXPORT int open64(const char *path, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;
    va_end(rest);
    return open(path, flags, mode);
}

EXPORT int close(int fd) {
    if (is_watched(fd)) watched[fd] = NOT_OURS;
    return REAL(close)(fd);
}

EXPORT int rename(const char *old, const char *new) {
    char kept[PATH_BYTES_MAX];
    if (!is_ours(new)) return REAL(rename)(old, new);
    pthread_mutex_lock(&lock);
    struct record record = {.kind = RENAMED, .inode = parent_inode(new)};
    kept_path(kept, record.inode, undo_end);
    if (link(new, kept) && errno != ENOENT) die(kept);
    append(&record, old, new, NULL);
    int done = REAL(rename)(old, new);
    pthread_mutex_unlock(&lock);
    return done;
}

EXPORT int unlink(const char *path) {
    char kept[PATH_BYTES_MAX];
    if (!is_ours(path) || access(path, F_OK)) return REAL(unlink)(path);
    pthread_mutex_lock(&lock);
    struct record record = {.kind = REMOVED, .inode = parent_inode(path)};
    kept_path(kept, record.inode, undo_end);
    append(&record, path, NULL, NULL);
    int done = REAL(rename)(path, kept);
    pthread_mutex_unlock(&lock);
    return done;
}

/* --- space and time ------------------------------------------------------------------------------ */

EXPORT int statvfs(const char *path, struct statvfs *found) {
    int done = REAL(statvfs)(path, found);
    if (!done && control && control->space_bytes >= 0)
        found->f_bavail = found->f_bfree = control->space_bytes / found->f_frsize;
    return done;
}

EXPORT int statvfs64(const char *path, struct statvfs64 *found) {
    return statvfs(path, (struct statvfs *)found); /* the same layout where a long has 64 bits */
}

EXPORT int clock_gettime(clockid_t clock, struct timespec *now) {
    int done = REAL(clock_gettime)(clock, now);
    if (done || !control || (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE)) return done;
    int64_t ns = now->tv_nsec + control->clock_ns % 1000000000;
    now->tv_sec += control->clock_ns / 1000000000 + (ns >= 1000000000) - (ns < 0);
    now->tv_nsec = ns + (ns < 0) * 1000000000L - (ns >= 1000000000) * 1000000000L;
    return done;
}

EXPORT int gettimeofday(struct timeval *now, void *zone) {
    struct timespec exact;
    (void)zone;
    int done = clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return done;
}

EXPORT time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}
