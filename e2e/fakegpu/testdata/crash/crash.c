/* Dies at every store in turn, and checks what others find.
 *
 * shm.c and sim.c are compiled in with step() counting the points at which a
 * process could die and leave something behind. A child does a fixed piece of
 * work and kills itself at point N; then this process, and a third one that
 * takes the dead one's slot, must find every card consistent and empty. N goes
 * from 1 until the child survives.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static long points, die_at;

static void point(void)
{
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	if (die_at && ++points == die_at)
		kill(getpid(), SIGKILL);
}

#define step() point()
#include "../../src/shm.c"
#include "../../src/sim.c"

static struct fg f;

static void need(int ok, const char *what, long n)
{
	if (ok)
		return;
	fprintf(stderr, "died at point %ld: %s\n", n, what);
	exit(1);
}

/* Memory and time of a card, with work left in the queue. */
static void work(void)
{
	for (int card = 0; card < f.node.cards; card++) {
		need(fg_mem_take(&f, card, 3 << 20), "no memory", -1);
		need(fg_mem_take(&f, card, 5 << 20), "no memory", -1);
		fg_contexts_add(&f, card, 1);
		fg_submit(&f, card, 1000, 0);
		fg_submit(&f, card, 0, 1);
		fg_submit(&f, card, 30000, 0);
		fg_wait(&f, card, fg_submit(&f, card, 1000, 0));
		fg_mem_give(&f, card, 3 << 20);
		fg_submit(&f, card, 1000000000, 0);
		fg_done(&f, card);
		fg_mem_used(&f, card);
	}
}

/* The card's sums are those of its slots; the undo log is empty. */
static void consistent(long n, uint64_t mine)
{
	for (int card = 0; card < f.node.cards; card++) {
		struct fg_card *c = &f.st->card[card];
		uint64_t sum = 0;

		need(fg_mem_used(&f, card) == mine, "memory of the dead is still taken", n);
		fg_done(&f, card);
		for (int i = 0; i < FG_SLOTS; i++)
			sum += c->s[i].mem;
		need(sum == c->mem, "the card's memory is not the sum of its processes'", n);
		need(c->undo_n == 0, "the undo log is not empty", n);
		fg_wait(&f, card, fg_submit(&f, card, 1000, 0));
	}
}

/* As a third process: its slot is the dead one's, being the lowest. */
static int successor(long n)
{
	char why[256];
	pid_t pid = fork();

	if (pid == 0) {
		need(fg_open(&f, why, sizeof why) && fg_attach(&f, FG_COMPUTE), "a successor cannot attach", n);
		consistent(n, 1 << 20);
		_exit(0);
	}
	int status;
	waitpid(pid, &status, 0);
	return status;
}

int main(void)
{
	char why[256];
	long n;
	int status = 1;

	need(fg_open(&f, why, sizeof why) && fg_attach(&f, FG_COMPUTE), "cannot attach", 0);
	for (int card = 0; card < f.node.cards; card++)
		need(fg_mem_take(&f, card, 1 << 20), "no memory of our own", 0);
	for (n = 1; status != 0; n++) {
		pid_t pid = fork();
		if (pid == 0) {
			if (!fg_open(&f, why, sizeof why) || !fg_attach(&f, FG_COMPUTE))
				_exit(1);
			die_at = n;
			work();
			_exit(0);
		}
		waitpid(pid, &status, 0);
		need(status == 0 || (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL), "the child failed", n);
		/* In turn a slot's next owner and a waiter are first to clean up. */
		if (n % 2)
			need(successor(n) == 0, "a successor failed", n);
		consistent(n, 1 << 20);
		if (n % 2 == 0)
			need(successor(n) == 0, "a successor failed", n);
	}
	printf("%ld points\n", n - 1);
	return 0;
}
