/* Stream-ordered memory, for the files that meet its pointers or contexts. */
#ifndef SLUICE_POOL_H
#define SLUICE_POOL_H

#include "process.h"

/* Brings the charge of a pool, or of all pools of a card, to what they have
 * reserved now. */
void pool_settle(CUmemoryPool pool);
void pools_settle(struct card *c);

/* Lets the card's pools give back what they do not use. Tells whether there are
 * any. */
bool pools_trim(struct card *c);

/* Brings the charge of a card's graph memory to what is reserved now, after
 * letting the driver give back what it does not use if trim says so. Under the
 * card's pool lock. */
void graphs_settle(struct card *c, bool trim);

/* A stream by the name that the driver's legacy functions know it by: the
 * per-thread variants mean another stream by 0. */
CUstream stream_named(CUstream stream, bool per_thread);

/* Whether what is put on the stream is only recorded. */
bool stream_capturing(CUstream stream);

#endif
