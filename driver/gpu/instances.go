package gpu

import (
	"errors"
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// What may be wrong with a change of a card's instances, beside ErrUnavailable.
var (
	// ErrTaken: the place, or what else the instance needs, belongs to another.
	ErrTaken = errors.New("the card has no room for the instance")
	// ErrBusy: programs use the instance.
	ErrBusy = errors.New("programs use the instance")
)

// Instances are the GPU instances of a card in MIG mode.
func (s *Scanner) Instances(card string) ([]Instance, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	dev, err := s.device(card)
	if err != nil {
		return nil, err
	}
	r := reader{lib: s.lib}
	p, err := r.partition(dev)
	if err != nil {
		return nil, fmt.Errorf("card %s: %w", card, err)
	}
	return p.Instances, nil
}

// MakeInstance makes an empty GPU instance of a profile at a place and returns
// its id. Nothing can run there until MakeCompute.
func (s *Scanner) MakeInstance(card string, profile int, at Place) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	dev, err := s.device(card)
	if err != nil {
		return 0, err
	}
	for number := range nvml.GPU_INSTANCE_PROFILE_COUNT {
		info, ret := dev.GetGpuInstanceProfileInfo(number)
		if ret != nvml.SUCCESS || int(info.Id) != profile {
			continue
		}
		gi, ret := dev.CreateGpuInstanceWithPlacement(&info, &nvml.GpuInstancePlacement{Start: uint32(at.Start), Size: uint32(at.Size)})
		if ret != nvml.SUCCESS {
			return 0, changed(ret, "card %s: making an instance of profile %d at memory slice %d", card, profile, at.Start)
		}
		made, ret := gi.GetInfo()
		if ret != nvml.SUCCESS {
			return 0, changed(ret, "card %s: reading the instance that was made", card)
		}
		return int(made.Id), nil
	}
	return 0, fmt.Errorf("card %s has no MIG profile %d", card, profile)
}

// MakeCompute makes the compute instance that is all of a GPU instance and
// returns its UUID.
func (s *Scanner) MakeCompute(card string, id int) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	dev, err := s.device(card)
	if err != nil {
		return "", err
	}
	gi, err := instanceOf(dev, id)
	if err != nil {
		return "", fmt.Errorf("card %s: %w", card, err)
	}
	var largest nvml.ComputeInstanceProfileInfo
	for number := range nvml.COMPUTE_INSTANCE_PROFILE_COUNT {
		info, ret := gi.GetComputeInstanceProfileInfo(number, nvml.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED)
		if ret == nvml.SUCCESS && info.SliceCount > largest.SliceCount {
			largest = info
		}
	}
	if largest.SliceCount == 0 {
		return "", fmt.Errorf("card %s: instance %d has no profile for compute instances", card, id)
	}
	ci, ret := gi.CreateComputeInstance(&largest)
	if ret != nvml.SUCCESS {
		return "", changed(ret, "card %s: making the compute instance of instance %d", card, id)
	}
	made, ret := ci.GetInfo()
	if ret != nvml.SUCCESS {
		return "", changed(ret, "card %s: reading the compute instance that was made", card)
	}
	r := reader{lib: s.lib}
	d, ok := r.migDevices(dev)[[2]int{id, int(made.Id)}]
	if !ok {
		return "", fmt.Errorf("card %s: NVML does not show the device of instance %d, which it has made", card, id)
	}
	return d.UUID, nil
}

// EndCompute destroys the compute instances in a GPU instance. An instance
// that is not there has none.
func (s *Scanner) EndCompute(card string, id int) error {
	return s.onInstance(card, id, func(gi nvml.GpuInstance) error {
		for _, c := range computeInstances(gi) {
			if ret := c.handle.Destroy(); ret != nvml.SUCCESS {
				return changed(ret, "card %s: destroying compute instance %d of instance %d", card, c.id, id)
			}
		}
		return nil
	})
}

// EndInstance destroys a GPU instance that has no compute instance. One that
// is not there is no error.
func (s *Scanner) EndInstance(card string, id int) error {
	return s.onInstance(card, id, func(gi nvml.GpuInstance) error {
		if ret := gi.Destroy(); ret != nvml.SUCCESS {
			return changed(ret, "card %s: destroying instance %d", card, id)
		}
		return nil
	})
}

func (s *Scanner) onInstance(card string, id int, do func(nvml.GpuInstance) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	dev, err := s.device(card)
	if err != nil {
		return err
	}
	gi, err := instanceOf(dev, id)
	if errors.Is(err, errNoInstance) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("card %s: %w", card, err)
	}
	return do(gi)
}

// HasDevice tells whether there is a MIG device with the UUID.
func (s *Scanner) HasDevice(uuid string) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.open(); err != nil {
		return false, err
	}
	_, ret := s.lib.DeviceGetHandleByUUID(uuid)
	switch ret {
	case nvml.SUCCESS:
		return true, nil
	case nvml.ERROR_NOT_FOUND, nvml.ERROR_INVALID_ARGUMENT:
		return false, nil
	}
	return false, fmt.Errorf("device %s: %s: %w", uuid, describe(ret), ErrUnavailable)
}

// device is the handle of a card. The caller holds mu.
func (s *Scanner) device(card string) (nvml.Device, error) {
	if err := s.open(); err != nil {
		return nil, err
	}
	dev, ret := s.lib.DeviceGetHandleByUUID(card)
	if ret != nvml.SUCCESS {
		return nil, fmt.Errorf("card %s: %s: %w", card, describe(ret), ErrUnavailable)
	}
	return dev, nil
}

var errNoInstance = errors.New("no such instance")

func instanceOf(dev nvml.Device, id int) (nvml.GpuInstance, error) {
	gi, ret := dev.GetGpuInstanceById(id)
	switch ret {
	case nvml.SUCCESS:
		return gi, nil
	case nvml.ERROR_NOT_FOUND:
		return nil, fmt.Errorf("instance %d: %w", id, errNoInstance)
	}
	return nil, fmt.Errorf("instance %d: %s", id, describe(ret))
}

// changed says why NVML refused a change.
func changed(ret nvml.Return, what string, args ...any) error {
	text := fmt.Sprintf(what, args...)
	switch ret {
	case nvml.ERROR_INSUFFICIENT_RESOURCES:
		return fmt.Errorf("%s: %w", text, ErrTaken)
	case nvml.ERROR_IN_USE:
		return fmt.Errorf("%s: %w", text, ErrBusy)
	}
	return fmt.Errorf("%s: %s", text, describe(ret))
}
