package gpu

import (
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// SetExclusive lets one process have contexts on the card with the UUID (compute
// mode EXCLUSIVE_PROCESS), or all that ask (DEFAULT). A card that is not there
// cannot be left exclusive: then the second is no error.
func (s *Scanner) SetExclusive(uuid string, exclusive bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.open(); err != nil {
		if !exclusive {
			return nil // with the driver its modes are gone
		}
		return err
	}
	dev, ret := s.lib.DeviceGetHandleByUUID(uuid)
	if ret == nvml.ERROR_NOT_FOUND && !exclusive {
		return nil
	}
	if ret != nvml.SUCCESS {
		return fmt.Errorf("card %s: %s", uuid, describe(ret))
	}
	mode := nvml.COMPUTEMODE_DEFAULT
	if exclusive {
		mode = nvml.COMPUTEMODE_EXCLUSIVE_PROCESS
	}
	if now, ret := dev.GetComputeMode(); ret == nvml.SUCCESS && now == mode {
		return nil
	}
	if ret := dev.SetComputeMode(mode); ret != nvml.SUCCESS {
		return fmt.Errorf("card %s: %s", uuid, describe(ret))
	}
	return nil
}
