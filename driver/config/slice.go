package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"
)

// SliceKind is the kind of the opaque parameters of a claim or a class.
const SliceKind = "SliceConfig"

// SliceConfig are the opaque parameters that a ResourceClaim or a DeviceClass
// gives to this driver. All fields may be left out; what neither the claim nor
// the class says comes from the node group of the card.
type SliceConfig struct {
	metav1.TypeMeta `json:",inline"`

	// CorePolicy says what becomes of the card's time beyond the share's
	// cores.
	CorePolicy CorePolicy `json:"corePolicy,omitempty"`

	// Oversubscribe: false refuses a card whose memory is promised more than
	// once, before the container starts. True, the default, takes any card.
	Oversubscribe *bool `json:"oversubscribe,omitempty"`

	// Enforcement says what holds the share to its size. A claim cannot ask
	// for none.
	Enforcement Enforcement `json:"enforcement,omitempty"`

	// Env is set in the containers that use the claim. If a container uses
	// several claims that set the same name, one of their values counts.
	Env []EnvVar `json:"env,omitempty"`
}

// EnvVar is an environment variable; see CheckEnvName for the names.
type EnvVar struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// CorePolicy is what becomes of a card's time beyond what its shares were
// given.
type CorePolicy string

const (
	// Burst guarantees a share its cores and lets it use idle time.
	Burst CorePolicy = "burst"
	// Hard never lets a share use more than its cores.
	Hard CorePolicy = "hard"
)

// Enforcement is what holds a share to its size.
type Enforcement string

const (
	// Limiter is Sluice's library in front of the CUDA driver's.
	Limiter Enforcement = "limiter"
	// MPS is NVIDIA's Multi-Process Service.
	MPS Enforcement = "mps"
	// ByMIG is the hardware: the share is a MIG instance.
	ByMIG Enforcement = "mig"
	// None holds the share to nothing.
	None Enforcement = "none"
)

var (
	corePolicies = []CorePolicy{Burst, Hard}
	enforcements = []Enforcement{Limiter, MPS, ByMIG, None}
)

// From is who wrote parameters. A class is an administrator's, a claim is a
// tenant's.
type From int

const (
	FromClaim From = iota
	FromClass
)

// DecodeSlice reads and checks the opaque parameters of one entry. Admission
// and Prepare both call it, so that what one accepts the other does too. at is
// the path of the parameters in their object; every error carries the path of
// its field below it.
func DecodeSlice(raw []byte, from From, at *field.Path) (*SliceConfig, field.ErrorList) {
	var meta metav1.TypeMeta
	if err := json.Unmarshal(raw, &meta); err != nil {
		return nil, field.ErrorList{field.Invalid(at, string(raw), "is not an object with apiVersion and kind")}
	}
	var errs field.ErrorList
	if meta.APIVersion != GroupVersion {
		errs = append(errs, field.NotSupported(at.Child("apiVersion"), meta.APIVersion, []string{GroupVersion}))
	}
	if meta.Kind != SliceKind {
		errs = append(errs, field.NotSupported(at.Child("kind"), meta.Kind, []string{SliceKind}))
	}
	if len(errs) > 0 {
		return nil, errs
	}
	c := &SliceConfig{}
	strict, err := kjson.UnmarshalStrict(raw, c)
	if err != nil {
		var wrong *json.UnmarshalTypeError
		if errors.As(err, &wrong) && wrong.Field != "" {
			return nil, field.ErrorList{field.Invalid(at.Child(wrong.Field), wrong.Value, "must be of type "+wrong.Type.String())}
		}
		return nil, field.ErrorList{field.Invalid(at, string(raw), err.Error())}
	}
	for _, err := range strict {
		errs = append(errs, strictError(at, err))
	}
	errs = append(errs, c.validate(from, at)...)
	if len(errs) > 0 {
		return nil, errs
	}
	return c, nil
}

// strictError tells of a field that is unknown or there twice.
func strictError(at *field.Path, err error) *field.Error {
	var fe kjson.FieldError
	if !errors.As(err, &fe) {
		return field.Invalid(at, "", err.Error())
	}
	detail := "is there twice"
	if strings.HasPrefix(err.Error(), "unknown") {
		detail = "is no field of a " + SliceKind + "; it has corePolicy, oversubscribe, enforcement and env"
	}
	return field.Forbidden(at.Child(fe.FieldPath()), detail)
}

func (c *SliceConfig) validate(from From, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if c.CorePolicy != "" && !slices.Contains(corePolicies, c.CorePolicy) {
		errs = append(errs, field.NotSupported(at.Child("corePolicy"), c.CorePolicy, corePolicies))
	}
	switch {
	case c.Enforcement == "":
	case !slices.Contains(enforcements, c.Enforcement):
		errs = append(errs, field.NotSupported(at.Child("enforcement"), c.Enforcement, enforcements))
	case c.Enforcement == None && from == FromClaim:
		errs = append(errs, field.Forbidden(at.Child("enforcement"), "a claim cannot lift its own limit; only a DeviceClass or a node group says none"))
	}
	seen := map[string]bool{}
	for i, v := range c.Env {
		at := at.Child("env").Index(i)
		if err := CheckEnvName(v.Name); err != nil {
			errs = append(errs, field.Invalid(at.Child("name"), v.Name, err.Error()))
		}
		if seen[v.Name] {
			errs = append(errs, field.Duplicate(at.Child("name"), v.Name))
		}
		seen[v.Name] = true
		if strings.ContainsRune(v.Value, 0) {
			errs = append(errs, field.Invalid(at.Child("value"), v.Value, "cannot contain a zero byte"))
		}
	}
	return errs
}

// envPrefixes begin the variables of frameworks and of the libraries that they
// are built on; envNames are those of CUDA that change how a program runs and
// not what it is given. Everything else is refused: what the loader, the
// limiter, the container runtime or the driver obey could widen a share.
var (
	envPrefixes = []string{
		"ACCELERATE_", "CUBLAS_", "CUBLASLT_", "CUDNN_", "DEEPSPEED_", "FLASHINFER_", "GGML_", "HF_", "JAX_", "KERAS_",
		"LLAMA_", "MKL_", "NCCL_", "NVTE_", "OLLAMA_", "OMP_", "OPENBLAS_", "PYTORCH_", "RAY_", "SGLANG_", "TF_",
		"TOKENIZERS_", "TORCH_", "TORCHINDUCTOR_", "TRANSFORMERS_", "TRITON_", "TRTLLM_", "VLLM_", "XLA_",
	}
	envNames = []string{
		"CUDA_CACHE_DISABLE", "CUDA_CACHE_MAXSIZE", "CUDA_CACHE_PATH", "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_FORCE_PTX_JIT",
		"CUDA_LAUNCH_BLOCKING", "CUDA_MODULE_LOADING", "CUDA_SCALE_LAUNCH_QUEUES",
	}
	envName = regexp.MustCompile(`^[A-Z][A-Z0-9_]*$`)
)

// CheckEnvName tells why a claim or class cannot set a variable.
func CheckEnvName(name string) error {
	if !envName.MatchString(name) {
		return errors.New("must consist of capital letters, digits and underscores, and begin with a letter")
	}
	if slices.Contains(envNames, name) {
		return nil
	}
	for _, p := range envPrefixes {
		if strings.HasPrefix(name, p) && len(name) > len(p) {
			return nil
		}
	}
	return fmt.Errorf("is no variable that a share may set: its name must begin with %s, or be %s; set others in the pod",
		strings.Join(envPrefixes, ", "), strings.Join(envNames, ", "))
}

// override takes over what other says.
func (c *SliceConfig) override(other *SliceConfig) {
	if other.CorePolicy != "" {
		c.CorePolicy = other.CorePolicy
	}
	if other.Oversubscribe != nil {
		c.Oversubscribe = other.Oversubscribe
	}
	if other.Enforcement != "" {
		c.Enforcement = other.Enforcement
	}
	for _, v := range other.Env {
		i := slices.IndexFunc(c.Env, func(have EnvVar) bool { return have.Name == v.Name })
		if i < 0 {
			c.Env = append(c.Env, v)
			continue
		}
		c.Env[i].Value = v.Value
	}
}
