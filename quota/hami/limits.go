package hami

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sluice-gpu/sluice/quota/pricing"
)

// The limits that are read. All but Count make a container one to translate.
const (
	Count         corev1.ResourceName = "nvidia.com/gpu"
	MemoryMi      corev1.ResourceName = "nvidia.com/gpumem"
	MemoryPercent corev1.ResourceName = "nvidia.com/gpumem-percentage"
	CoresPercent  corev1.ResourceName = "nvidia.com/gpucores"
	Memory        corev1.ResourceName = "nvidia.com/gpu-memory"
	Cores         corev1.ResourceName = "nvidia.com/gpu-core-percent"
	// Priority is HAMi's own order of tasks on a card, which nothing here has.
	Priority corev1.ResourceName = "nvidia.com/priority"
)

var (
	telling = []corev1.ResourceName{MemoryMi, MemoryPercent, CoresPercent, Memory, Cores}
	known   = append([]corev1.ResourceName{Count, Priority}, telling...)
)

const (
	mi = int64(1) << 20
	// mostMi is more memory than any card has: 16 TiB. A larger number of MiB was
	// meant as bytes.
	mostMi = int64(1) << 24
	// mostDevices is how many devices one claim can be given.
	mostDevices = 32
)

// need is what one container asks for.
type need struct {
	count int64
	// memory is in bytes; 0 for whatever a card gives to those who name none.
	memory int64
	// percent is memory in percent of the card; 0 if memory says it.
	percent int64
	// cores is -1 where none are named.
	cores int64
}

// covers says whether what is made for n serves for m too.
func (n need) covers(m need) bool {
	if n.count < m.count || n.cores < m.cores {
		return false
	}
	switch {
	case n == m:
		return true
	case n.percent > 0 || m.percent > 0:
		return n.percent >= m.percent && n.memory == m.memory
	case n.memory == 0 || m.memory == 0:
		return n.memory == m.memory
	}
	return n.memory >= m.memory
}

// Asked says whether any container of a pod says more of its GPUs than how many,
// so that the pod is one to translate.
func Asked(spec *corev1.PodSpec) bool {
	for _, list := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for i := range list {
			if asks(&list[i]) {
				return true
			}
		}
	}
	return false
}

func asks(c *corev1.Container) bool {
	return slices.ContainsFunc(telling, func(r corev1.ResourceName) bool { return has(c, r) })
}

func has(c *corev1.Container, r corev1.ResourceName) bool {
	_, ok := value(c, r)
	return ok
}

// value is a limit, or a request where there is no limit.
func value(c *corev1.Container, r corev1.ResourceName) (resource.Quantity, bool) {
	if q, ok := c.Resources.Limits[r]; ok {
		return q, true
	}
	q, ok := c.Resources.Requests[r]
	return q, ok
}

// whole is a limit as a number, 0 if it is not there.
func whole(c *corev1.Container, r corev1.ResourceName) (int64, error) {
	q, ok := value(c, r)
	if !ok {
		return 0, nil
	}
	n, exact := q.AsInt64()
	if !exact || n < 0 {
		return 0, fmt.Errorf("%s is %s; a whole number that is not negative is needed", r, q.String())
	}
	return n, nil
}

// read is what a container asks for; nil if it asks for no GPU after all.
// warnings are what is done otherwise than it says.
func read(c *corev1.Container) (n *need, warnings []string, err error) {
	numbers := map[corev1.ResourceName]int64{}
	for _, r := range known {
		if numbers[r], err = whole(c, r); err != nil {
			return nil, nil, err
		}
	}
	if has(c, Priority) {
		warnings = append(warnings, fmt.Sprintf("%s has no meaning here and is left out", Priority))
	}
	n = &need{count: 1, cores: -1}
	if has(c, Count) {
		n.count = numbers[Count]
	}
	if n.count == 0 {
		for _, r := range telling {
			if numbers[r] > 0 {
				return nil, nil, fmt.Errorf("%s is 0 and %s is not; leave both out, or ask for a GPU", Count, r)
			}
		}
		return nil, warnings, nil
	}
	if n.count > mostDevices {
		return nil, nil, fmt.Errorf("%d GPUs are asked for, and %d is the most", n.count, mostDevices)
	}
	if more, err := n.readMemory(c, numbers); err != nil {
		return nil, nil, err
	} else if more != "" {
		warnings = append(warnings, more)
	}
	more, err := n.readCores(c, numbers)
	if more != "" {
		warnings = append(warnings, more)
	}
	return n, warnings, err
}

func (n *need) readMemory(c *corev1.Container, numbers map[corev1.ResourceName]int64) (warning string, err error) {
	switch bytes, inMi, percent := numbers[Memory], numbers[MemoryMi], numbers[MemoryPercent]; {
	case bytes > 0 && (inMi > 0 || percent > 0):
		return "", fmt.Errorf("%s and %s or %s are both given; say once how much memory", Memory, MemoryMi, MemoryPercent)
	case bytes > 0 && bytes < mi:
		return "", fmt.Errorf("%s is in bytes, and %d bytes are less than 1Mi; write the unit, as in %dMi", Memory, bytes, bytes)
	case bytes > 0:
		n.memory = bytes
	case inMi > mostMi:
		q, _ := value(c, MemoryMi)
		return "", fmt.Errorf("%s counts MiB, and %s of them are more than any card has; write %s for %s", MemoryMi, q.String(), pricing.FormatBytes(inMi), Memory)
	case inMi > 0:
		n.memory = inMi * mi
		if percent > 0 {
			warning = fmt.Sprintf("%s and %s are both given, and %s is taken", MemoryMi, MemoryPercent, MemoryMi)
		}
	case percent > 100:
		return "", fmt.Errorf("%s is %d and counts percent of one card; use 1 to 100", MemoryPercent, percent)
	case percent == 100:
		// All of it is what those get who name no memory.
	case percent > 0:
		n.percent = percent
	}
	return warning, nil
}

func (n *need) readCores(c *corev1.Container, numbers map[corev1.ResourceName]int64) (warning string, err error) {
	if has(c, CoresPercent) && has(c, Cores) && numbers[CoresPercent] != numbers[Cores] {
		return "", fmt.Errorf("%s and %s are both given; say once how much time", CoresPercent, Cores)
	}
	switch {
	case has(c, Cores):
		n.cores = numbers[Cores]
		if n.cores > pricing.WholeCard {
			return "", fmt.Errorf("%s is %d and counts percent of one card; use 0 to %d", Cores, n.cores, pricing.WholeCard)
		}
	case has(c, CoresPercent):
		n.cores = numbers[CoresPercent]
		if n.cores > pricing.WholeCard {
			warning = fmt.Sprintf("%s is %d and counts percent of one card, so %d is taken", CoresPercent, n.cores, pricing.WholeCard)
			n.cores = pricing.WholeCard
		}
	}
	return warning, nil
}
