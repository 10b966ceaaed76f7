package config

import (
	"reflect"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"
)

var specAt = field.NewPath("spec", "devices", "config").Index(0).Child("opaque", "parameters")

func sliceJSON(t testing.TB, body string) []byte {
	t.Helper()
	js, err := yaml.YAMLToJSON([]byte("apiVersion: gpu.sluice.dev/v1alpha1\nkind: SliceConfig\n" + body))
	if err != nil {
		t.Fatal(err)
	}
	return js
}

func TestParametersSayWhatTheyMay(t *testing.T) {
	got, errs := DecodeSlice(sliceJSON(t, "corePolicy: hard\noversubscribe: false\nenforcement: mps\nenv:\n- {name: NCCL_DEBUG, value: WARN}\n"), FromClaim, specAt)
	if len(errs) > 0 {
		t.Fatal(errs.ToAggregate())
	}
	want := SliceConfig{CorePolicy: Hard, Oversubscribe: ptr.To(false), Enforcement: MPS, Env: []EnvVar{{"NCCL_DEBUG", "WARN"}}}
	got.TypeMeta = want.TypeMeta
	if !reflect.DeepEqual(*got, want) {
		t.Errorf("got %+v, want %+v", *got, want)
	}
}

func TestWrongParametersAreRefusedWithThePathOfTheField(t *testing.T) {
	const at = "spec.devices.config[0].opaque.parameters"
	for name, tc := range map[string]struct {
		raw  string
		from From
		want string
	}{
		"no object":           {raw: `"hard"`, want: at + ": Invalid value"},
		"not JSON":            {raw: `{`, want: at + ": Invalid value"},
		"another driver's":    {raw: `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig"}`, want: at + `.apiVersion: Unsupported value: "resource.nvidia.com/v1beta1"`},
		"wrong kind":          {raw: `{"apiVersion":"gpu.sluice.dev/v1alpha1","kind":"GpuConfig"}`, want: at + `.kind: Unsupported value: "GpuConfig": supported values: "SliceConfig"`},
		"misspelt field":      {raw: string(sliceJSON(t, "corePolcy: hard\n")), want: at + ".corePolcy: Forbidden: is no field"},
		"misspelt inner":      {raw: string(sliceJSON(t, "env:\n- {name: TF_X, val: y}\n")), want: at + ".env[0].val: Forbidden"},
		"capital letters":     {raw: string(sliceJSON(t, "CorePolicy: hard\n")), want: at + ".CorePolicy: Forbidden"},
		"field twice":         {raw: `{"apiVersion":"gpu.sluice.dev/v1alpha1","kind":"SliceConfig","corePolicy":"hard","corePolicy":"burst"}`, want: at + ".corePolicy: Forbidden: is there twice"},
		"wrong type":          {raw: string(sliceJSON(t, "env: 5\n")), want: at + `.env: Invalid value: "number"`},
		"unknown policy":      {raw: string(sliceJSON(t, "corePolicy: soft\n")), want: at + `.corePolicy: Unsupported value: "soft": supported values: "burst", "hard"`},
		"unknown enforcement": {raw: string(sliceJSON(t, "enforcement: honour\n")), want: at + `.enforcement: Unsupported value: "honour"`},
		"a claim lifts its limit": {raw: string(sliceJSON(t, "enforcement: none\n")),
			want: at + ".enforcement: Forbidden: a claim cannot lift its own limit"},
		"name twice":   {raw: string(sliceJSON(t, "env:\n- {name: TF_X, value: a}\n- {name: TF_X, value: b}\n")), want: at + `.env[1].name: Duplicate value: "TF_X"`},
		"loader":       {raw: string(sliceJSON(t, "env:\n- {name: LD_PRELOAD, value: /x.so}\n")), want: at + `.env[0].name: Invalid value: "LD_PRELOAD"`},
		"class loader": {raw: string(sliceJSON(t, "env:\n- {name: LD_PRELOAD, value: /x.so}\n")), from: FromClass, want: at + `.env[0].name: Invalid value: "LD_PRELOAD"`},
		"zero byte":    {raw: string(sliceJSON(t, `env: [{name: TF_X, value: "a\0b"}]`)), want: at + `.env[0].value: Invalid value`},
	} {
		t.Run(name, func(t *testing.T) {
			_, errs := DecodeSlice([]byte(tc.raw), tc.from, specAt)
			if len(errs) == 0 {
				t.Fatal("accepted")
			}
			if got := errs.ToAggregate().Error(); !strings.Contains(got, tc.want) {
				t.Errorf("error is\n%s\nwant it to contain\n%s", got, tc.want)
			}
		})
	}
}

func TestAClassMayLiftTheLimit(t *testing.T) {
	if _, errs := DecodeSlice(sliceJSON(t, "enforcement: none\n"), FromClass, specAt); len(errs) > 0 {
		t.Error(errs.ToAggregate())
	}
}

func TestVariablesThatChangeWhatAShareGetsCannotBeSet(t *testing.T) {
	for _, name := range []string{
		"LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT", "GLIBC_TUNABLES", "PATH", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER",
		"CUDA_INJECTION64_PATH", "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
		"NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "SLUICE_X", "FAKEGPU_DIR", "TF_", "tf_x", "", "A=B", "TF_X=",
	} {
		if CheckEnvName(name) == nil {
			t.Errorf("%q is accepted", name)
		}
	}
	for _, name := range []string{"PYTORCH_CUDA_ALLOC_CONF", "TF_FORCE_GPU_ALLOW_GROWTH", "XLA_PYTHON_CLIENT_MEM_FRACTION", "NCCL_P2P_LEVEL", "CUDA_MODULE_LOADING", "VLLM_USE_V1"} {
		if err := CheckEnvName(name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func entry(source resourceapi.AllocationConfigSource, driver, raw string, requests ...string) resourceapi.DeviceAllocationConfiguration {
	return resourceapi.DeviceAllocationConfiguration{
		Source: source, Requests: requests,
		DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{
			Driver: driver, Parameters: runtime.RawExtension{Raw: []byte(raw)},
		}},
	}
}

func TestTheClaimOverridesTheClassFieldByField(t *testing.T) {
	const class, claim = resourceapi.AllocationConfigSourceClass, resourceapi.AllocationConfigSourceClaim
	p, errs := AllocatedParameters([]resourceapi.DeviceAllocationConfiguration{
		entry(claim, "gpu.sluice.dev", string(sliceJSON(t, "corePolicy: hard\nenv: [{name: TF_A, value: claim}, {name: TF_C, value: claim}]\n")), "train"),
		entry(claim, "other.example.com", `{"anything": true}`),
		entry(class, "gpu.sluice.dev", string(sliceJSON(t, "corePolicy: burst\nenforcement: mps\nenv: [{name: TF_A, value: class}, {name: TF_B, value: class}]\n"))),
	}, specAt)
	if len(errs) > 0 {
		t.Fatal(errs.ToAggregate())
	}
	for request, want := range map[string]SliceConfig{
		"train":       {CorePolicy: Hard, Enforcement: MPS, Env: []EnvVar{{"TF_A", "claim"}, {"TF_B", "class"}, {"TF_C", "claim"}}},
		"train/large": {CorePolicy: Hard, Enforcement: MPS, Env: []EnvVar{{"TF_A", "claim"}, {"TF_B", "class"}, {"TF_C", "claim"}}},
		"serve":       {CorePolicy: Burst, Enforcement: MPS, Env: []EnvVar{{"TF_A", "class"}, {"TF_B", "class"}}},
	} {
		if got := p.For(resourceapi.DeviceRequestAllocationResult{Request: request}); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %+v, want %+v", request, got, want)
		}
	}
}

func TestWrongParametersOfAnAllocationNameTheirEntry(t *testing.T) {
	at := field.NewPath("status", "allocation", "devices", "config")
	_, errs := AllocatedParameters([]resourceapi.DeviceAllocationConfiguration{
		entry(resourceapi.AllocationConfigSourceClaim, "other.example.com", `{"anything": true}`),
		entry(resourceapi.AllocationConfigSourceClaim, "gpu.sluice.dev", string(sliceJSON(t, "corePolicy: soft\n"))),
	}, at)
	if len(errs) != 1 || errs[0].Field != "status.allocation.devices.config[1].opaque.parameters.corePolicy" {
		t.Errorf("got %v", errs)
	}
}

func TestClaimsAndClassesAreCheckedByTheSameRules(t *testing.T) {
	device := entry("", "gpu.sluice.dev", string(sliceJSON(t, "enforcement: none\n"))).DeviceConfiguration
	other := entry("", "other.example.com", `{}`).DeviceConfiguration
	at := field.NewPath("spec", "config")
	errs := ValidateClaimConfig([]resourceapi.DeviceClaimConfiguration{{DeviceConfiguration: other}, {DeviceConfiguration: device}}, at)
	if len(errs) != 1 || errs[0].Field != "spec.config[1].opaque.parameters.enforcement" {
		t.Errorf("claim: got %v", errs)
	}
	if errs := ValidateClassConfig([]resourceapi.DeviceClassConfiguration{{DeviceConfiguration: other}, {DeviceConfiguration: device}}, at); len(errs) > 0 {
		t.Errorf("class: got %v", errs)
	}
}

func FuzzDecodeSlice(f *testing.F) {
	f.Add([]byte(`{"apiVersion":"gpu.sluice.dev/v1alpha1","kind":"SliceConfig","env":[{"name":"TF_X","value":"y"}]}`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		c, errs := DecodeSlice(raw, FromClaim, specAt)
		if (c == nil) != (len(errs) > 0) {
			t.Fatalf("%+v with errors %v", c, errs)
		}
		if c != nil && c.Enforcement == None {
			t.Fatal("a claim lifts its limit")
		}
	})
}
