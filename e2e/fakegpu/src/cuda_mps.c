/* libcuda: being a client of MPS.
 *
 * A program whose pipe folder has a control daemon's socket becomes its client
 * with its first context, and keeps the connection as long as it lives. What its
 * environment says of memory holds from then on. Where the card is in compute
 * mode EXCLUSIVE_PROCESS nobody else gets a context: the MPS server has it.
 */
#include "cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* CUDA_MPS_PINNED_DEVICE_MEM_LIMIT is "0=4096M", or with G; of further cards
 * nothing is read. */
static uint64_t limit_of(const char *text)
{
	unsigned long long n;
	char unit;

	if (!text || sscanf(text, "0=%llu%c", &n, &unit) != 2)
		return 0;
	return unit == 'G' ? n << 30 : unit == 'M' ? n << 20 : 0;
}

static int dial(void)
{
	const char *dir = getenv("CUDA_MPS_PIPE_DIRECTORY");
	struct sockaddr_un at = {.sun_family = AF_UNIX};
	const int n = snprintf(at.sun_path, sizeof at.sun_path, "%s/control", dir ? dir : "/tmp/nvidia-mps");

	if (n < 0 || (size_t)n >= sizeof at.sun_path || access(at.sun_path, F_OK) != 0)
		return -1;
	const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd >= 0 && connect(fd, (struct sockaddr *)&at, sizeof at) == 0)
		return fd;
	if (fd >= 0)
		close(fd);
	return -2;
}

CUresult cu_mps(int card)
{
	static word client; /* the attachment that is connected */

	if (client == fg_p->fg.client)
		return CUDA_SUCCESS;
	const int fd = dial();
	if (fd == -2)
		return CUDA_ERROR_MPS_CONNECTION_FAILED;
	if (fd == -1)
		return fg_p->fg.st->card[card].exclusive ? CUDA_ERROR_DEVICE_UNAVAILABLE : CUDA_SUCCESS;
	const char *memory = getenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"), *threads = getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE");
	char answer[64] = "";
	dprintf(fd, "client %s %s\n", memory ? memory : "-", threads ? threads : "-");
	if (read(fd, answer, sizeof answer - 1) <= 0 || strncmp(answer, "served", 6) != 0) {
		close(fd);
		return CUDA_ERROR_MPS_CONNECTION_FAILED;
	}
	client = fg_p->fg.client;
	fg_p->fg.limit[card] = limit_of(memory);
	return CUDA_SUCCESS;
}
