#define _GNU_SOURCE
#include "say.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Through write, not stdio: the program's buffers and locks are its own. */
void say(const char *format, ...)
{
    static int said;
    char line[512] = "sluice: CUDA refused: ";
    size_t n = strlen(line);
    va_list args;
    int saved = errno;
    if (__atomic_exchange_n(&said, 1, __ATOMIC_RELAXED))
        return;
    va_start(args, format);
    int more = vsnprintf(line + n, sizeof line - n - 1, format, args);
    va_end(args);
    if (more > 0) {
        n = strlen(line);
        line[n++] = '\n';
        ssize_t written = write(STDERR_FILENO, line, n);
        (void)written;
    }
    errno = saved;
}
