package fakegpu

import (
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// nvmlHeader is the public header, as go-nvml ships it.
func nvmlHeader(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("go", "list", "-f", "{{.Dir}}", "github.com/NVIDIA/go-nvml/pkg/nvml").Output()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(strings.TrimSpace(string(out)), "nvml.h")
}

func exported(t *testing.T, path string) map[string]bool {
	t.Helper()
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	symbols, err := f.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, s := range symbols {
		if s.Section != elf.SHN_UNDEF {
			names[s.Name] = true
		}
	}
	return names
}

// go-nvml calls most functions without asking whether they exist; a missing one ends the program.
func TestNVMLExportsEveryFunctionOfTheHeader(t *testing.T) {
	built, err := build()
	if err != nil {
		t.Fatal(err)
	}
	have := exported(t, filepath.Join(built, "libnvidia-ml.so.1"))
	text, err := os.ReadFile(nvmlHeader(t))
	if err != nil {
		t.Fatal(err)
	}
	functions := regexp.MustCompile(`DECLDIR (nvml[A-Za-z0-9_]+)\(`).FindAllStringSubmatch(string(text), -1)
	if len(functions) < 400 {
		t.Fatalf("only %d functions found in the header", len(functions))
	}
	for _, f := range functions {
		if !have[f[1]] {
			t.Errorf("%s is not exported", f[1])
		}
	}
}

func TestLibrariesExportNothingButTheAPI(t *testing.T) {
	built, err := build()
	if err != nil {
		t.Fatal(err)
	}
	for lib, prefix := range map[string]string{"libcuda.so.1": "cu", "libnvidia-ml.so.1": "nvml"} {
		path := filepath.Join(built, lib)
		for name := range exported(t, path) {
			if !strings.HasPrefix(name, prefix) || strings.HasPrefix(name, "cu_") {
				t.Errorf("%s exports %s", lib, name)
			}
		}
		f, err := elf.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		if soname, _ := f.DynString(elf.DT_SONAME); len(soname) != 1 || soname[0] != lib {
			t.Errorf("%s has the SONAME %q", lib, soname)
		}
		// -Bsymbolic: a shim's names must not reach into the library.
		flags, _ := f.DynValue(elf.DT_FLAGS)
		if len(flags) == 0 || elf.DynFlag(flags[0])&elf.DF_SYMBOLIC == 0 {
			t.Errorf("%s is not linked with -Bsymbolic", lib)
		}
		f.Close()
	}
}

// A program that prints the layout of the structures, compiled against either header.
const layout = `
#include <stddef.h>
#include <stdio.h>
#include HEADER
#define SIZE(t) printf("%s %zu\n", #t, sizeof(t));
#define AT(t, f) printf("%s.%s %zu\n", #t, #f, offsetof(t, f));
int main(void)
{
	SIZE(nvmlPciInfo_t) AT(nvmlPciInfo_t, domain) AT(nvmlPciInfo_t, pciDeviceId) AT(nvmlPciInfo_t, pciSubSystemId) AT(nvmlPciInfo_t, busId)
	SIZE(nvmlMemory_t) AT(nvmlMemory_t, free) AT(nvmlMemory_t, used)
	SIZE(nvmlMemory_v2_t) AT(nvmlMemory_v2_t, total) AT(nvmlMemory_v2_t, reserved) AT(nvmlMemory_v2_t, free) AT(nvmlMemory_v2_t, used)
	SIZE(nvmlBAR1Memory_t) AT(nvmlBAR1Memory_t, bar1Used)
	SIZE(nvmlProcessInfo_v1_t) AT(nvmlProcessInfo_v1_t, usedGpuMemory)
	SIZE(nvmlProcessInfo_t) AT(nvmlProcessInfo_t, usedGpuMemory) AT(nvmlProcessInfo_t, computeInstanceId)
	SIZE(nvmlProcessUtilizationSample_t) AT(nvmlProcessUtilizationSample_t, timeStamp) AT(nvmlProcessUtilizationSample_t, smUtil)
	SIZE(nvmlUtilization_t) AT(nvmlUtilization_t, memory)
	SIZE(nvmlEventData_t) AT(nvmlEventData_t, eventData) AT(nvmlEventData_t, computeInstanceId)
	SIZE(nvmlGpuInstanceProfileInfo_t) AT(nvmlGpuInstanceProfileInfo_t, multiprocessorCount) AT(nvmlGpuInstanceProfileInfo_t, memorySizeMB)
	SIZE(nvmlGpuInstanceProfileInfo_v2_t) AT(nvmlGpuInstanceProfileInfo_v2_t, ofaCount) AT(nvmlGpuInstanceProfileInfo_v2_t, name)
	SIZE(nvmlGpuInstanceProfileInfo_v3_t) AT(nvmlGpuInstanceProfileInfo_v3_t, ofaCount) AT(nvmlGpuInstanceProfileInfo_v3_t, name) AT(nvmlGpuInstanceProfileInfo_v3_t, capabilities)
	SIZE(nvmlGpuInstanceInfo_t) AT(nvmlGpuInstanceInfo_t, profileId) AT(nvmlGpuInstanceInfo_t, placement)
	SIZE(nvmlComputeInstanceProfileInfo_t) AT(nvmlComputeInstanceProfileInfo_t, sharedOfaCount)
	SIZE(nvmlComputeInstanceProfileInfo_v2_t) AT(nvmlComputeInstanceProfileInfo_v2_t, name)
	SIZE(nvmlComputeInstanceProfileInfo_v3_t) AT(nvmlComputeInstanceProfileInfo_v3_t, capabilities)
	SIZE(nvmlComputeInstanceInfo_t) AT(nvmlComputeInstanceInfo_t, gpuInstance) AT(nvmlComputeInstanceInfo_t, placement)
	SIZE(nvmlDeviceAttributes_t) AT(nvmlDeviceAttributes_t, gpuInstanceSliceCount) AT(nvmlDeviceAttributes_t, memorySizeMB)
	SIZE(nvmlSample_t) AT(nvmlSample_t, sampleValue)
	printf("%d %d %d %d %d %d\n", NVML_ERROR_UNINITIALIZED, NVML_ERROR_NOT_SUPPORTED, NVML_ERROR_INSUFFICIENT_SIZE,
	       NVML_ERROR_GPU_IS_LOST, NVML_ERROR_ARGUMENT_VERSION_MISMATCH, NVML_ERROR_UNKNOWN);
	return 0;
}
`

func TestNVMLStructuresAreLaidOutAsInTheHeader(t *testing.T) {
	dir := t.TempDir()
	source := filepath.Join(dir, "layout.c")
	if err := os.WriteFile(source, []byte(layout), 0o644); err != nil {
		t.Fatal(err)
	}
	ours, err := filepath.Abs("abi/nvml_abi.h")
	if err != nil {
		t.Fatal(err)
	}
	var printed []string
	for i, header := range []string{ours, nvmlHeader(t)} {
		program := filepath.Join(dir, fmt.Sprint("layout", i))
		if out, err := exec.Command("gcc", fmt.Sprintf("-DHEADER=%q", header), "-o", program, source).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		out, err := exec.Command(program).Output()
		if err != nil {
			t.Fatal(err)
		}
		printed = append(printed, string(out))
	}
	if printed[0] != printed[1] {
		t.Errorf("ours:\n%s\nthe header's:\n%s", printed[0], printed[1])
	}
}
