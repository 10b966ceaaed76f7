/*
 * The first process of a machine and of a pod: does nothing, takes in orphans, ends when asked to.
 * Without handlers the kernel would not deliver these signals to a PID namespace's first process.
 */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void end(int sig) { _exit(128 + sig); }

static void reap(int sig) {
    (void)sig;
    while (waitpid(-1, 0, WNOHANG) > 0) {
    }
}

int main(void) {
    struct sigaction s = {.sa_handler = reap, .sa_flags = SA_NOCLDSTOP};
    sigaction(SIGCHLD, &s, 0);
    s.sa_handler = end;
    sigaction(SIGTERM, &s, 0);
    sigaction(SIGINT, &s, 0);
    for (;;)
        pause();
}
