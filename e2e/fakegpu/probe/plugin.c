/* A plugin that is linked with libcuda, as Python extensions are: it hands out
 * the addresses that its own relocations got. */
#include "probe.h"

#define CALL(name, base, params) extern CUresult name params;
#include "calls.h"
#undef CALL

__attribute__((visibility("default"))) const struct calls *cudaprobe_plugin_calls(void);

const struct calls *cudaprobe_plugin_calls(void)
{
	static const struct calls mine = {
#define CALL(name, base, params) .name = name,
#include "calls.h"
#undef CALL
	};

	return &mine;
}
