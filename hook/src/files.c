#define _GNU_SOURCE
#include "files.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The system call itself: the C library's fstat is a symbol newer than the
 * libraries that we must run with. */
int64_t regular_size(int fd)
{
    struct stat st;
    return syscall(SYS_fstat, fd, &st) == 0 && S_ISREG(st.st_mode) ? (int64_t)st.st_size : -1;
}

static int open_regular(const char *path, int64_t *size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return -1;
    if ((*size = regular_size(fd)) >= 0)
        return fd;
    close(fd);
    errno = EINVAL;
    return -1;
}

const char *limit_check(const void *bytes, size_t n, struct sluice_limit *out)
{
    if (n != sizeof *out)
        return "it has the wrong size";
    memcpy(out, bytes, sizeof *out);
    if (out->magic != SLUICE_LIMIT_MAGIC)
        return "it is no limit file";
    if (out->version != SLUICE_VERSION || out->size != sizeof *out)
        return "it is of another version than this limiter";
    if (out->checksum != sluice_checksum(out, offsetof(struct sluice_limit, checksum)))
        return "it is damaged";
    if (out->flags & ~SLUICE_LIMIT_WHOLE || out->core_percent > 100 || out->core_policy > SLUICE_CORES_HARD)
        return "it says something that this limiter does not know";
    if (!(out->flags & SLUICE_LIMIT_WHOLE) &&
        (out->memory_bytes < SLUICE_UNIT || out->memory_bytes > SLUICE_MAX_BYTES))
        return "its memory limit is out of range";
    return 0;
}

const char *limit_read(const char *path, struct sluice_limit *out)
{
    char bytes[sizeof *out + 1];
    int64_t size;
    int fd = open_regular(path, &size);
    if (fd < 0)
        return strerror(errno);
    ssize_t n = read(fd, bytes, sizeof bytes);
    close(fd);
    return limit_check(bytes, n < 0 ? 0 : (size_t)n, out);
}

const char *grant_map(const char *path, const struct sluice_grant **out)
{
    int64_t size;
    struct sluice_grant copy, *g;
    int fd = open_regular(path, &size);
    if (fd < 0)
        return strerror(errno);
    g = size == sizeof *g ? mmap(0, sizeof *g, PROT_READ, MAP_SHARED, fd, 0) : MAP_FAILED;
    close(fd);
    if (g == MAP_FAILED)
        return "it has the wrong size or cannot be mapped";
    madvise(g, sizeof *g, MADV_DONTFORK);
    if (!grant_get(g, &copy)) {
        munmap(g, sizeof *g);
        return "it is damaged, or its writer died; the node's driver rewrites it";
    }
    *out = g;
    return 0;
}

bool grant_get(const struct sluice_grant *g, struct sluice_grant *out)
{
    /* The node's write takes microseconds. The checksum makes a torn copy seen
     * even where the writer's stores arrive in another order. */
    for (int i = 0; i < 1000; i++) {
        uint32_t sequence = __atomic_load_n(&g->sequence, __ATOMIC_ACQUIRE);
        memcpy(out, (const void *)g, sizeof *out);
        __atomic_thread_fence(__ATOMIC_ACQUIRE);
        if (sequence % 2 == 0 && sequence == __atomic_load_n(&g->sequence, __ATOMIC_RELAXED)) {
            out->sequence = 0;
            if (out->magic != SLUICE_GRANT_MAGIC || out->version != SLUICE_VERSION || out->size != sizeof *out)
                return false;
            if (out->checksum == sluice_checksum(out, offsetof(struct sluice_grant, checksum)))
                return true;
        }
        sched_yield();
    }
    return false;
}
