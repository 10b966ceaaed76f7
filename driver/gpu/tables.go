package gpu

import (
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// brands and architectures use the spelling of NVIDIA's own DRA driver, so
// that selectors written for it keep working.
var brands = map[nvml.BrandType]string{
	nvml.BRAND_QUADRO:              "Quadro",
	nvml.BRAND_TESLA:               "Tesla",
	nvml.BRAND_NVS:                 "NVS",
	nvml.BRAND_GRID:                "Grid",
	nvml.BRAND_GEFORCE:             "GeForce",
	nvml.BRAND_TITAN:               "Titan",
	nvml.BRAND_NVIDIA_VAPPS:        "NvidiaVApps",
	nvml.BRAND_NVIDIA_VPC:          "NvidiaVPC",
	nvml.BRAND_NVIDIA_VCS:          "NvidiaVCS",
	nvml.BRAND_NVIDIA_VWS:          "NvidiaVWS",
	nvml.BRAND_NVIDIA_CLOUD_GAMING: "NvidiaCloudGaming",
	nvml.BRAND_QUADRO_RTX:          "QuadroRTX",
	nvml.BRAND_NVIDIA_RTX:          "NvidiaRTX",
	nvml.BRAND_NVIDIA:              "Nvidia",
	nvml.BRAND_GEFORCE_RTX:         "GeForceRTX",
	nvml.BRAND_TITAN_RTX:           "TitanRTX",
}

var architectures = map[nvml.DeviceArchitecture]string{
	nvml.DEVICE_ARCH_KEPLER:    "Kepler",
	nvml.DEVICE_ARCH_MAXWELL:   "Maxwell",
	nvml.DEVICE_ARCH_PASCAL:    "Pascal",
	nvml.DEVICE_ARCH_VOLTA:     "Volta",
	nvml.DEVICE_ARCH_TURING:    "Turing",
	nvml.DEVICE_ARCH_AMPERE:    "Ampere",
	nvml.DEVICE_ARCH_ADA:       "Ada Lovelace",
	nvml.DEVICE_ARCH_HOPPER:    "Hopper",
	nvml.DEVICE_ARCH_BLACKWELL: "Blackwell",
}

// coresPerSM is the number of FP32 lanes of one multiprocessor (CUDA C++
// Programming Guide, "Arithmetic Instructions"): NVML counts lanes.
func coresPerSM(major, minor int) int {
	switch {
	case major == 6 && minor == 0, major == 7, major == 8 && minor == 0:
		return 64
	default:
		return 128
	}
}

// fp16 holds dense tensor-core FP16 throughput in TFLOPS from NVIDIA's data
// sheets, figures "with sparsity" halved. The first row whose words all occur in
// the product name counts.
var fp16 = []struct {
	words  []string
	tflops int64
}{
	{[]string{"B200"}, 2250},       // HGX B200 data sheet: 36 PFLOPS sparse of 8 cards
	{[]string{"H200", "NVL"}, 836}, // H200 Tensor Core GPU data sheet, column NVL
	{[]string{"H200"}, 989},        // the same, column SXM
	{[]string{"H100", "PCI"}, 756}, // H100 Tensor Core GPU data sheet of 2022, column PCIe
	{[]string{"H100", "NVL"}, 836}, // H100 Tensor Core GPU data sheet, column NVL
	{[]string{"H100"}, 989},        // the same, column SXM
	{[]string{"A100"}, 312},        // A100 Tensor Core GPU data sheet
	{[]string{"A30"}, 165},         // A30 Tensor Core GPU data sheet
	{[]string{"A10"}, 125},         // A10 Tensor Core GPU data sheet
	{[]string{"L40S"}, 362},        // L40S data sheet
	{[]string{"L40"}, 181},         // L40 data sheet
	{[]string{"L4"}, 121},          // L4 Tensor Core GPU data sheet
	{[]string{"T4"}, 65},           // T4 Tensor Core GPU data sheet
	{[]string{"V100", "PCI"}, 112}, // V100 Tensor Core GPU data sheet, column PCIe
	{[]string{"V100"}, 125},        // the same, column SXM2
}

func fp16TFLOPS(product string) int64 {
	for _, row := range fp16 {
		all := true
		for _, w := range row.words {
			all = all && strings.Contains(product, w)
		}
		if all {
			return row.tflops
		}
	}
	return 0
}
