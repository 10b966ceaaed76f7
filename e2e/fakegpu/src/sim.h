/* The simulation of a card's time.
 *
 * Every process has one hardware queue on a card, FG_QUEUE entries deep: its
 * streams order its work but do not overlap. A card runs one kernel at a time.
 *
 *   fifo       the oldest kernel of all queues runs to its end
 *   timeslice  the processes with work take turns of slice_ns; a kernel is cut
 *              off at the end of a turn and goes on in the next one
 *
 * Nobody runs the simulation: whoever takes the card's lock first advances it
 * to the present, so all observers agree. Switching costs nothing.
 */
#ifndef FAKEGPU_SIM_H
#define FAKEGPU_SIM_H

#include "shm.h"

/* Advances the card to time t. Under its lock. */
void fg_advance(struct fg *f, int card, uint64_t t);

/* Queues ns of work, or a marker when ns is 0. event is 1 + the cell to stamp
 * at its end, or 0. Waits while the queue is full. The result is the work's
 * mark: it is done once fg_done() has reached it. */
uint64_t fg_submit(struct fg *f, int card, uint64_t ns, uint64_t event);

/* The mark up to which our queue is done. */
uint64_t fg_done(struct fg *f, int card);
/* Returns when our queue is done up to the mark. */
void fg_wait(struct fg *f, int card, uint64_t mark);

/* Busy share in percent of the card (slot < 0) or of one slot, from time
 * `since` to the end of the last whole period; *until is that end. */
unsigned fg_busy_percent(struct fg *f, int card, int slot, uint64_t since, uint64_t *until);

#endif
