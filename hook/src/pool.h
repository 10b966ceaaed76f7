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

#endif
