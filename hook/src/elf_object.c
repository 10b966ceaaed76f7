#define _GNU_SOURCE
#include "elf_object.h"

#include <elf.h>
#include <string.h>

/* Most loaders write absolute addresses into the dynamic section, some leave
 * offsets there. */
static const void *at(uintptr_t base, ElfW(Addr) p)
{
    return (const void *)(p < base ? base + p : p);
}

bool object_open(struct object *o, const struct dl_phdr_info *info)
{
    const ElfW(Dyn) *d = 0;
    uintptr_t soname = 0;
    bool named = false;
    memset(o, 0, sizeof *o);
    o->base = info->dlpi_addr;
    for (int i = 0; i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_DYNAMIC)
            d = (const void *)(o->base + info->dlpi_phdr[i].p_vaddr);
    for (; d && d->d_tag != DT_NULL; d++) {
        switch (d->d_tag) {
        case DT_SYMTAB:
            o->symbols = at(o->base, d->d_un.d_ptr);
            break;
        case DT_STRTAB:
            o->strings = at(o->base, d->d_un.d_ptr);
            break;
        case DT_GNU_HASH:
            o->gnu_hash = at(o->base, d->d_un.d_ptr);
            break;
        case DT_HASH:
            o->sysv_hash = at(o->base, d->d_un.d_ptr);
            break;
        case DT_SONAME:
            soname = d->d_un.d_val;
            named = true;
            break;
        default:
            break;
        }
    }
    if (!named || !o->strings || !o->symbols || (!o->gnu_hash && !o->sysv_hash))
        return false;
    o->soname = o->strings + soname;
    return true;
}

static void *symbol(const struct object *o, uint32_t i, const char *name)
{
    const ElfW(Sym) *s = &o->symbols[i];
    if (s->st_shndx == SHN_UNDEF || ELF64_ST_TYPE(s->st_info) != STT_FUNC || strcmp(o->strings + s->st_name, name))
        return 0;
    return (void *)(o->base + s->st_value);
}

static void *look_up_gnu(const struct object *o, const char *name)
{
    uint32_t h = 5381;
    for (const unsigned char *c = (const void *)name; *c; c++)
        h = h * 33 + *c;
    const uint32_t buckets = o->gnu_hash[0], first = o->gnu_hash[1], bloom = o->gnu_hash[2];
    const uint32_t *bucket = o->gnu_hash + 4 + bloom * (sizeof(ElfW(Addr)) / 4);
    const uint32_t *chain = bucket + buckets;
    uint32_t i = buckets ? bucket[h % buckets] : 0;
    if (i < first)
        return 0;
    for (;; i++) {
        uint32_t have = chain[i - first];
        void *p;
        if ((have | 1) == (h | 1) && (p = symbol(o, i, name)))
            return p;
        if (have & 1)
            return 0;
    }
}

static void *look_up_sysv(const struct object *o, const char *name)
{
    uint32_t h = 0;
    for (const unsigned char *c = (const void *)name; *c; c++) {
        h = (h << 4) + *c;
        h = (h ^ (h >> 24 & 0xf0)) & 0x0fffffff;
    }
    const ElfW(Word) *t = o->sysv_hash;
    uint32_t buckets = t[0];
    void *p;
    for (uint32_t i = buckets ? t[2 + h % buckets] : 0; i; i = t[2 + buckets + i])
        if ((p = symbol(o, i, name)))
            return p;
    return 0;
}

void *object_function(const struct object *o, const char *name)
{
    return o->gnu_hash ? look_up_gnu(o, name) : look_up_sysv(o, name);
}
