package gpu

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/nvidia-container-toolkit/pkg/lookup"
)

// Inventory is the result of one look at the node.
type Inventory struct {
	// GPUs are the readable cards in PCI order.
	GPUs []GPU
	// Missing has one sentence for each card that NVML counts but cannot
	// read, for example one that fell off the bus. One that could be read before
	// is also among GPUs, as it was, with a fault.
	Missing []string
}

// ErrUnavailable is matched by errors that mean "no card can be read now":
// no driver library, driver not loaded, library and kernel module of
// different versions. It is a state of the node to be reported and tried
// again, not a fault of the program.
var ErrUnavailable = errors.New("GPU driver unavailable")

// Source looks at the cards of the node.
type Source interface {
	// Scan returns what is there now. The error matches ErrUnavailable when
	// there is nothing to look at.
	Scan() (Inventory, error)
}

// Scanner is the Source over NVML. It keeps the library open while it works,
// and opens it anew after it failed, so that a driver installed or reloaded
// later is found without a restart. Calls take turns.
type Scanner struct {
	// Open returns the library to use, not yet initialised.
	Open func() (nvml.Interface, error)
	// Sysfs is the root of sysfs.
	Sysfs fs.ReadLinkFS

	// WatchXIDs lets error events of a card make it faulty, unless they are
	// among Benign.
	WatchXIDs bool
	Benign    []uint64
	// Quiet is for how long a card must report no error after one that is not
	// fatal. Default QuietPeriod.
	Quiet time.Duration
	// FaultsFile keeps faults over restarts of this program, not of the node,
	// whose boot id BootID is. Empty: they are not kept.
	FaultsFile, BootID string
	// Now is the clock. Default time.Now.
	Now func() time.Time

	mu   sync.Mutex
	lib  nvml.Interface
	xids xids
	// known are the cards by UUID as they were read last; lost are those that
	// could not be read since.
	known map[string]GPU
	lost  map[string]bool
}

// Judge says which error events count from now on: all but benign (nil:
// BenignXIDs), and how long a card must be quiet after one that is not fatal
// (0: QuietPeriod).
func (s *Scanner) Judge(benign []uint64, quiet time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if benign == nil {
		benign = BenignXIDs()
	}
	s.Benign, s.Quiet = benign, quiet
}

// NewScanner scans with the NVML library found below driverRoot (the folder
// that holds the driver's files as this process sees them) and the sysfs
// mounted at sysfsRoot.
func NewScanner(driverRoot, sysfsRoot string) *Scanner {
	return &Scanner{
		Open:  func() (nvml.Interface, error) { return openNVML(driverRoot) },
		Sysfs: os.DirFS(sysfsRoot).(fs.ReadLinkFS),

		WatchXIDs: true,
		Benign:    BenignXIDs(),
	}
}

func openNVML(driverRoot string) (nvml.Interface, error) {
	found, err := lookup.NewLibraryLocator(
		lookup.WithLogger(quiet{}),
		lookup.WithRoot(driverRoot),
	).Locate("libnvidia-ml.so.1")
	if err != nil || len(found) == 0 {
		return nil, fmt.Errorf("no libnvidia-ml.so.1 below driver root %s: %w", driverRoot, ErrUnavailable)
	}
	return nvml.New(nvml.WithLibraryPath(found[0])), nil
}

// Library returns the initialised NVML library of the last successful scan,
// nil before.
func (s *Scanner) Library() nvml.Interface {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lib
}

// Scan implements Source.
func (s *Scanner) Scan() (Inventory, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.open(); err != nil {
		return Inventory{}, err
	}
	inv, err := s.scan()
	if err != nil {
		// Without a driver no card runs; those that come back were started anew.
		for uuid := range s.known {
			s.lose(uuid)
		}
		s.shut()
	}
	return inv, err
}

// open opens the library if it is not; the caller holds mu.
func (s *Scanner) open() error {
	if s.lib != nil {
		return nil
	}
	lib, err := s.Open()
	if err != nil {
		return err
	}
	if ret := lib.Init(); ret != nvml.SUCCESS {
		return fmt.Errorf("NVML does not start: %s: %w", describe(ret), ErrUnavailable)
	}
	s.lib = lib
	return nil
}

// alive asks for one more reference to the library and gives it back: a
// driver whose kernel module is gone refuses it while old handles still
// answer.
func (s *Scanner) alive() error {
	if ret := s.lib.Init(); ret != nvml.SUCCESS {
		return fmt.Errorf("NVML does not start again: %s: %w", describe(ret), ErrUnavailable)
	}
	_ = s.lib.Shutdown()
	return nil
}

// Close gives the library back. A later Scan opens it again.
func (s *Scanner) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shut()
}

func (s *Scanner) shut() {
	if s.lib != nil {
		s.xids.closed()
		_ = s.lib.Shutdown()
		s.lib = nil
	}
}

func (s *Scanner) scan() (Inventory, error) {
	if err := s.alive(); err != nil {
		return Inventory{}, err
	}
	count, ret := s.lib.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return Inventory{}, fmt.Errorf("NVML does not count cards: %s: %w", describe(ret), ErrUnavailable)
	}
	now, quiet := time.Now(), s.Quiet
	if s.Now != nil {
		now = s.Now()
	}
	if quiet <= 0 {
		quiet = QuietPeriod
	}
	s.xids.load(s.FaultsFile, s.BootID)
	changed := s.xids.read(s.Benign, now)
	changed = s.xids.rested(quiet, now) || changed
	r := reader{lib: s.lib, sysfs: s.Sysfs, faults: s.xids}
	if err := r.versions(); err != nil {
		return Inventory{}, err
	}
	var inv Inventory
	var links []linked
	seen, missing := map[string]bool{}, map[int]string{}
	for i := range count {
		dev, ret := s.lib.DeviceGetHandleByIndex(i)
		if ret != nvml.SUCCESS {
			missing[i] = "no handle: " + describe(ret)
			continue
		}
		g, err := r.card(i, dev)
		if err != nil {
			missing[i] = err.Error()
			continue
		}
		seen[g.UUID] = true
		if s.lost[g.UUID] {
			delete(s.lost, g.UUID)
			changed = s.xids.returned(g.UUID) || changed
		}
		if s.WatchXIDs {
			s.xids.watch(s.lib, dev, g.UUID)
			if _, bad := s.xids.faults[g.UUID]; bad {
				changed = s.xids.recover(g.UUID, energyOf(dev), quiet, now) || changed
			}
			s.xids.mark(&g, quiet)
		}
		inv.GPUs = append(inv.GPUs, g)
		links = append(links, r.links(g, dev))
	}
	changed = s.xids.forget(inv.GPUs) || changed
	setNVLinkDomains(inv.GPUs, links)
	s.remember(&inv, seen, missing, count)
	if changed {
		if err := s.xids.save(s.FaultsFile, s.BootID); err != nil {
			inv.Missing = append(inv.Missing, fmt.Sprintf("faults are not kept: %v", err))
		}
	}
	SortByPCI(inv.GPUs)
	return inv, nil
}

// remember adds cards that could be read before and are counted still. A card
// that NVML does not count any more was taken out, and is gone.
func (s *Scanner) remember(inv *Inventory, seen map[string]bool, missing map[int]string, count int) {
	for _, i := range slices.Sorted(maps.Keys(missing)) {
		inv.Missing = append(inv.Missing, fmt.Sprintf("card %d of %d: %s", i, count, missing[i]))
	}
	next := map[string]GPU{}
	for _, g := range inv.GPUs {
		next[g.UUID] = g
	}
	left := len(missing)
	for _, uuid := range slices.Sorted(maps.Keys(s.known)) {
		if seen[uuid] {
			continue
		}
		s.lose(uuid)
		if left == 0 {
			continue
		}
		left--
		g := s.known[uuid]
		why := missing[g.Index]
		if why == "" {
			why = "NVML has no handle for it"
		}
		g.Fault, g.Dead = "the card cannot be read: "+why, true
		g.Clears = "it is offered again when it can be"
		next[uuid] = g
		inv.GPUs = append(inv.GPUs, g)
	}
	s.known = next
}

func (s *Scanner) lose(uuid string) {
	if s.lost == nil {
		s.lost = map[string]bool{}
	}
	s.lost[uuid] = true
}

// describe says an NVML result in words that do not depend on the library
// being loaded.
func describe(ret nvml.Return) string {
	switch ret {
	case nvml.ERROR_LIBRARY_NOT_FOUND:
		return "library not found"
	case nvml.ERROR_DRIVER_NOT_LOADED:
		return "driver not loaded"
	case nvml.ERROR_LIB_RM_VERSION_MISMATCH:
		return "library and kernel module are of different versions"
	case nvml.ERROR_GPU_IS_LOST:
		return "card is lost (fell off the bus?)"
	case nvml.ERROR_NO_PERMISSION:
		return "no permission (is the container privileged?)"
	default:
		return fmt.Sprintf("NVML error %d", int32(ret))
	}
}

// quiet drops the locator's remarks: a library that is not there is an
// ordinary state here.
type quiet struct{}

func (quiet) Debugf(string, ...interface{})   {}
func (quiet) Errorf(string, ...interface{})   {}
func (quiet) Infof(string, ...interface{})    {}
func (quiet) Warningf(string, ...interface{}) {}
func (quiet) Tracef(string, ...interface{})   {}
