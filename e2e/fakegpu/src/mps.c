/* nvidia-cuda-mps-control of the simulated driver: the control daemon, and the
 * program that speaks to it.
 *
 *   nvidia-cuda-mps-control -f   the daemon, in the foreground
 *   nvidia-cuda-mps-control      passes its input to the daemon, line by line
 *
 * Commands: get_server_list, get_client_list <pid>, quit. The daemon refuses to
 * start where a real one could not work: without one card by UUID, without a
 * folder for pipes and one for logs, and where /dev/shm is not in memory. What it
 * was told is in control.log. A simulated libcuda that connects is a client until
 * the connection ends.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/un.h>
#include <unistd.h>

#define TMPFS_MAGIC 0x01021994
#define MOST 64 /* connections */

static const char *pipes, *logs;

static void out(const char *format, ...)
{
	char path[512];
	va_list args;
	FILE *f;

	snprintf(path, sizeof path, "%s/control.log", logs);
	f = fopen(path, "a");
	if (!f)
		return;
	va_start(args, format);
	vfprintf(f, format, args);
	va_end(args);
	fputc('\n', f);
	fclose(f);
}

static int refuse(const char *why)
{
	fprintf(stderr, "nvidia-cuda-mps-control: %s\n", why);
	return 1;
}

static struct sockaddr_un address(void)
{
	struct sockaddr_un at = {.sun_family = AF_UNIX};

	snprintf(at.sun_path, sizeof at.sun_path, "%s/control", pipes);
	return at;
}

static struct {
	int fd;
	bool client;
	char said[256];
} c[MOST];

/* Answers one line. True to end. */
static bool answer(int i, char *line)
{
	const int fd = c[i].fd;

	line[strcspn(line, "\n")] = 0;
	out("%s", line);
	if (strncmp(line, "client ", 7) == 0) {
		c[i].client = true;
		snprintf(c[i].said, sizeof c[i].said, "%s", line + 7);
		dprintf(fd, "served %d\n", getpid());
	} else if (strcmp(line, "get_server_list") == 0) {
		dprintf(fd, "%d\n", getpid());
	} else if (strncmp(line, "get_client_list", 15) == 0) {
		for (int k = 0; k < MOST; k++)
			if (c[k].fd >= 0 && c[k].client)
				dprintf(fd, "%s\n", c[k].said);
	} else if (strcmp(line, "quit") == 0) {
		return true;
	} else {
		dprintf(fd, "Invalid command\n");
	}
	if (!c[i].client) {
		close(fd);
		c[i].fd = -1;
	}
	return false;
}

static int serve(int l)
{
	for (int i = 0; i < MOST; i++)
		c[i].fd = -1;
	for (;;) {
		struct pollfd p[MOST + 1] = {{.fd = l, .events = POLLIN}};
		for (int i = 0; i < MOST; i++)
			p[i + 1] = (struct pollfd){.fd = c[i].fd, .events = POLLIN};
		if (poll(p, MOST + 1, -1) < 0) {
			if (errno == EINTR)
				continue;
			return refuse(strerror(errno));
		}
		for (int i = 0; i < MOST; i++) {
			char line[256] = "";
			if (c[i].fd < 0 || !p[i + 1].revents)
				continue;
			if (read(c[i].fd, line, sizeof line - 1) <= 0) {
				if (c[i].client)
					out("client left");
				close(c[i].fd);
				c[i].fd = -1;
				c[i].client = false;
			} else if (answer(i, line)) {
				return 0;
			}
		}
		if (p[0].revents) {
			const int fd = accept(l, NULL, NULL);
			int i = 0;
			while (i < MOST && c[i].fd >= 0)
				i++;
			if (i == MOST)
				close(fd);
			else
				c[i].fd = fd, c[i].client = false;
		}
	}
}

static int daemon_of_a_card(void)
{
	const char *card = getenv("CUDA_VISIBLE_DEVICES");
	struct sockaddr_un at = address(), unheard = at;
	struct statfs shm;
	char path[512];
	FILE *f;

	if (geteuid() != 0)
		return refuse("it has to be root to serve every user");
	if (!card || strncmp(card, "GPU-", 4) != 0 || strchr(card, ','))
		return refuse("CUDA_VISIBLE_DEVICES is not the UUID of one card");
	if (!logs)
		return refuse("CUDA_MPS_LOG_DIRECTORY is not set");
	if (statfs("/dev/shm", &shm) != 0 || shm.f_type != TMPFS_MAGIC)
		return refuse("/dev/shm is not in memory");
	if (access("/proc/self", F_OK) != 0)
		return refuse("there is no /proc");
	signal(SIGPIPE, SIG_IGN);
	/* The name appears when somebody listens. */
	snprintf(unheard.sun_path, sizeof unheard.sun_path, "%s/new", pipes);
	unlink(unheard.sun_path);
	const int l = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (l < 0 || bind(l, (struct sockaddr *)&unheard, sizeof unheard) != 0)
		return refuse(strerror(errno));
	snprintf(path, sizeof path, "%s/nvidia-cuda-mps-control.pid", pipes);
	f = fopen(path, "w");
	if (!f)
		return refuse(strerror(errno));
	fprintf(f, "%d\n", getpid());
	fclose(f);
	/* Clients of any user connect. */
	if (chmod(unheard.sun_path, 0666) != 0 || listen(l, MOST) != 0 || rename(unheard.sun_path, at.sun_path) != 0)
		return refuse(strerror(errno));
	out("serving %s", card);
	const int result = serve(l);
	unlink(at.sun_path);
	unlink(path);
	return result;
}

static int speak(void)
{
	char line[256];

	while (fgets(line, sizeof line, stdin)) {
		struct sockaddr_un at = address();
		char text[1024];
		ssize_t n;
		const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

		if (fd < 0 || connect(fd, (struct sockaddr *)&at, sizeof at) != 0)
			return refuse("Cannot find MPS control daemon process");
		dprintf(fd, "%s", line);
		while ((n = read(fd, text, sizeof text)) > 0)
			fwrite(text, 1, (size_t)n, stdout);
		close(fd);
	}
	return 0;
}

int main(int argc, char **argv)
{
	pipes = getenv("CUDA_MPS_PIPE_DIRECTORY");
	logs = getenv("CUDA_MPS_LOG_DIRECTORY");
	if (!pipes)
		return refuse("CUDA_MPS_PIPE_DIRECTORY must be set to start or to communicate with MPS control daemon");
	if (argc > 1 && strcmp(argv[1], "-f") == 0)
		return daemon_of_a_card();
	return argc == 1 ? speak() : refuse("-f, or no argument");
}
