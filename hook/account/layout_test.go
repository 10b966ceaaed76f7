package account

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// mirrored pairs what C says with what Go believes.
var mirrored = []struct {
	c    string // a C expression
	inGo uint64
}{
	{"SLUICE_VERSION", Version},
	{"SLUICE_LIMIT_MAGIC", limitMagic},
	{"SLUICE_GRANT_MAGIC", grantMagic},
	{"SLUICE_ACCOUNT_MAGIC", accountMagic},
	{"SLUICE_UNIT_SHIFT", unitShift},
	{"SLUICE_UNIT", Unit},
	{"SLUICE_SEQ_BITS", seqBits},
	{"SLUICE_SLOT_BITS", slotBits},
	{"SLUICE_UNIT_BITS", unitBits},
	{"SLUICE_MAX_UNITS", maxUnits},
	{"SLUICE_MAX_BYTES", MaxMemory},
	{"SLUICE_SLOTS", Slots},
	{"SLUICE_LIMIT_WHOLE", uint64(limitWhole)},
	{"SLUICE_CORES_NONE", uint64(CoresNone)},
	{"SLUICE_CORES_BURST", uint64(CoresBurst)},
	{"SLUICE_CORES_HARD", uint64(CoresHard)},

	{"sizeof(struct sluice_limit)", limitSize},
	{"offsetof(struct sluice_limit, magic)", offMagic},
	{"offsetof(struct sluice_limit, version)", offVersion},
	{"offsetof(struct sluice_limit, size)", offSize},
	{"offsetof(struct sluice_limit, card)", limitOffCard},
	{"sizeof(((struct sluice_limit *)0)->card)", uint64(len(UUID{}))},
	{"offsetof(struct sluice_limit, memory_bytes)", limitOffMemory},
	{"offsetof(struct sluice_limit, core_percent)", limitOffCorePercent},
	{"offsetof(struct sluice_limit, core_policy)", limitOffCorePolicy},
	{"offsetof(struct sluice_limit, flags)", limitOffFlags},
	{"offsetof(struct sluice_limit, checksum)", limitOffChecksum},

	{"sizeof(struct sluice_grant)", grantSize},
	{"offsetof(struct sluice_grant, magic)", offMagic},
	{"offsetof(struct sluice_grant, version)", offVersion},
	{"offsetof(struct sluice_grant, size)", offSize},
	{"offsetof(struct sluice_grant, sequence)", grantOffSequence},
	{"offsetof(struct sluice_grant, heartbeat_ns)", grantOffHeartbeat},
	{"offsetof(struct sluice_grant, context_overhead_bytes)", grantOffOverhead},
	{"offsetof(struct sluice_grant, core_rate_ppm)", grantOffCoreRate},
	{"offsetof(struct sluice_grant, busy_factor_ppm)", grantOffBusyFactor},
	{"offsetof(struct sluice_grant, core_gated)", grantOffGated},
	{"offsetof(struct sluice_grant, core_fallback_ppm)", grantOffFallback},
	{"offsetof(struct sluice_grant, checksum)", grantOffChecksum},

	{"sizeof(struct sluice_account)", accountSize},
	{"offsetof(struct sluice_account, magic)", offMagic},
	{"offsetof(struct sluice_account, version)", offVersion},
	{"offsetof(struct sluice_account, size)", offSize},
	{"offsetof(struct sluice_account, slots)", accountOffSlots},
	{"offsetof(struct sluice_account, total)", accountOffTotal},
	{"offsetof(struct sluice_account, peak_units)", accountOffPeak},
	{"offsetof(struct sluice_account, refused)", accountOffRefused},
	{"offsetof(struct sluice_account, reaped)", accountOffReaped},
	{"offsetof(struct sluice_account, next_slot)", accountOffNext},
	{"offsetof(struct sluice_account, core_tokens_ns)", accountOffTokens},
	{"offsetof(struct sluice_account, core_filled_ns)", accountOffFilled},
	{"offsetof(struct sluice_account, core_busy_ns)", accountOffBusy},
	{"offsetof(struct sluice_account, core_charged_ns)", accountOffCharged},
	{"offsetof(struct sluice_account, core_throttled_ns)", accountOffWaited},
	{"offsetof(struct sluice_account, core_asked)", accountOffAsked},
	{"offsetof(struct sluice_account, slot)", accountOffSlot},

	{"sizeof(struct sluice_slot)", slotSize},
	{"offsetof(struct sluice_slot, applied)", slotOffApplied},
	{"offsetof(struct sluice_slot, record)", slotOffRecord},
	{"offsetof(struct sluice_slot, pid)", slotOffPID},
	{"offsetof(struct sluice_slot, contexts)", slotOffContexts},
	{"offsetof(struct sluice_slot, busy_ns)", slotOffBusy},
	{"offsetof(struct sluice_slot, context_units)", slotOffOverhead},

	{`sluice_checksum("sluice", 6)`, checksum([]byte("sluice"))},
}

// TestLayoutIsTheSameInCAndGo compiles the header and asks it for every offset
// and size that the Go side uses.
func TestLayoutIsTheSameInCAndGo(t *testing.T) {
	dir := t.TempDir()
	// Opened here too, so that the go command sees when it changes.
	if _, err := os.ReadFile("../include/sluice_layout.h"); err != nil {
		t.Fatal(err)
	}
	var src strings.Builder
	src.WriteString("#include <stdio.h>\n#include \"sluice_layout.h\"\nint main(void){\n")
	for _, m := range mirrored {
		fmt.Fprintf(&src, "printf(\"%%llu\\n\", (unsigned long long)(%s));\n", m.c)
	}
	src.WriteString("return 0;}\n")
	file, program := filepath.Join(dir, "layout.c"), filepath.Join(dir, "layout")
	if err := os.WriteFile(file, []byte(src.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	compile := exec.Command("gcc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-I../include", "-o", program, file)
	if out, err := compile.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", compile.Args, err, out)
	}
	out, err := exec.Command(program).Output()
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Fields(string(out))
	if len(lines) != len(mirrored) {
		t.Fatalf("the program printed %d numbers, want %d", len(lines), len(mirrored))
	}
	for i, m := range mirrored {
		if want := fmt.Sprint(m.inGo); lines[i] != want {
			t.Errorf("%s: C says %s, Go says %s", m.c, lines[i], want)
		}
	}
}
