/* Names in the objects that are loaded here, from their own symbol tables. */
#ifndef SLUICE_ELF_OBJECT_H
#define SLUICE_ELF_OBJECT_H

#include <link.h>
#include <stdbool.h>
#include <stdint.h>

struct object {
    uintptr_t base;
    const ElfW(Sym) *symbols;
    const char *strings;
    const uint32_t *gnu_hash;
    const ElfW(Word) *sysv_hash;
    const char *soname;
};

/* False for what has no SONAME or no symbols. */
bool object_open(struct object *o, const struct dl_phdr_info *info);

/* A function's address; 0 if the object does not define it. */
void *object_function(const struct object *o, const char *name);

#endif
