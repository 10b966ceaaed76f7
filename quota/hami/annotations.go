package hami

import (
	"fmt"
	"maps"
	"strconv"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/sluice-gpu/sluice/quota/pricing"
)

// The annotations that choose cards, each a list separated by commas.
const (
	UseType   = "nvidia.com/use-gputype"
	NoUseType = "nvidia.com/nouse-gputype"
	UseUUID   = "nvidia.com/use-gpuuuid"
	NoUseUUID = "nvidia.com/nouse-gpuuuid"
)

// idle are annotations of HAMi that say where to place a pod; placing is the
// quota controller's here.
var idle = []string{
	"nvidia.com/numa-bind", "nvidia.com/vgpu-mode", "hami.io/gpu-scheduler-policy", "hami.io/node-scheduler-policy",
}

// Annotations are those that a translation reads; nil if there are none.
func Annotations(all map[string]string) map[string]string {
	kept := maps.Clone(all)
	maps.DeleteFunc(kept, func(k, _ string) bool {
		return k != UseType && k != NoUseType && k != UseUUID && k != NoUseUUID
	})
	if len(kept) == 0 {
		return nil
	}
	return kept
}

// selectors are the annotations as conditions on devices.
func selectors(annotations map[string]string) ([]resourceapi.DeviceSelector, error) {
	const attribute = `device.attributes["` + pricing.DriverName + `"].`
	product := func(part string) string {
		return attribute + "productName.upperAscii().contains(" + strconv.Quote(strings.ToUpper(part)) + ")"
	}
	uuid := func(id string) string { return attribute + "uuid == " + strconv.Quote(id) }

	var all []resourceapi.DeviceSelector
	for _, s := range []struct {
		key   string
		not   bool
		match func(string) string
	}{{UseType, false, product}, {NoUseType, true, product}, {UseUUID, false, uuid}, {NoUseUUID, true, uuid}} {
		var any []string
		for _, item := range strings.Split(annotations[s.key], ",") {
			item = strings.TrimSpace(item)
			if item == "" {
				continue
			}
			if !plain(item) {
				return nil, fmt.Errorf("annotation %s: %q is neither part of a product's name nor a UUID", s.key, item)
			}
			any = append(any, s.match(item))
		}
		if len(any) == 0 {
			continue
		}
		expression := strings.Join(any, " || ")
		if s.not {
			expression = "!(" + expression + ")"
		}
		if len(expression) > resourceapi.CELSelectorExpressionMaxLength {
			return nil, fmt.Errorf("annotation %s names too many", s.key)
		}
		all = append(all, resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{Expression: expression}})
	}
	return all, nil
}

// plain says whether a text can stand between quotes as it is, in Go and in CEL.
func plain(s string) bool {
	for _, r := range s {
		if r < ' ' || r > '~' || r == '"' || r == '\\' {
			return false
		}
	}
	return true
}
