package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/sluice-gpu/sluice/cdi"
	"github.com/sluice-gpu/sluice/driver"
	"github.com/sluice-gpu/sluice/driver/config"
	"github.com/sluice-gpu/sluice/driver/enforce"
	"github.com/sluice-gpu/sluice/driver/state"
)

// Edits tells what containers need to use the driver and a card.
type Edits interface {
	// Common are the edits for the driver's files.
	Common() (specs.ContainerEdits, error)
	// Card are the edits that open the card with the UUID.
	Card(uuid string) (specs.ContainerEdits, error)
}

// files are what a prepared claim has on the host: a folder with a folder a
// share, and a CDI spec. They are made before the checkpoint says so and
// removed before it forgets; what belongs to no claim of the checkpoint is
// therefore garbage of a process that died, and sweep removes it.
type files struct {
	sharesDir string // <plugin dir>/shares
	cdiDir    string
	metadata  string // the plugin helper's folder of device metadata
	proc      string // where procfs is mounted, of the host's PID namespace
	edits     Edits
	backends  map[config.Enforcement]enforce.Backend
	// overhead is what a context on the card will probably take.
	overhead func(card string) uint64
}

// recordName is the copy of a claim's checkpoint entry among its files, from
// which the checkpoint is rebuilt if it is lost.
const recordName = "claim.json"

// The folders of the plugin's own that containers have files of.
const (
	sharesName   = "shares"
	metadataName = "dra-device-metadata"
)

func (f *files) claimDir(uid types.UID) string { return filepath.Join(f.sharesDir, string(uid)) }
func (f *files) specPath(uid types.UID) string {
	return filepath.Join(f.cdiDir, cdi.FileName(string(uid)))
}

func deviceName(uid types.UID, s state.Share) string {
	return cdi.DeviceName(string(uid), s.Device, string(s.ShareID))
}

// make writes a claim's files, leaving alone those of its shares that exist.
// On an error some may be left, for the caller to remove.
func (f *files) make(ctx context.Context, c state.Claim, boot string) error {
	if err := os.MkdirAll(f.claimDir(c.UID), 0o755); err != nil {
		return err
	}
	common, err := f.edits.Common()
	if err != nil {
		return err
	}
	var limiter *cdi.Limiter
	var shares []cdi.Share
	for _, s := range c.Shares {
		out := cdi.Share{Name: deviceName(c.UID, s)}
		for _, uuid := range s.Cards {
			card, err := f.edits.Card(uuid)
			if err != nil {
				return fmt.Errorf("device %s: %w", s.Device, err)
			}
			out.Cards = append(out.Cards, card)
		}
		held, err := f.hold(ctx, c.UID, s)
		if err != nil {
			return fmt.Errorf("device %s: %w", s.Device, err)
		}
		if held.Limited {
			out.Files = filepath.Join(f.claimDir(c.UID), out.Name)
		}
		if held.Libraries != nil {
			limiter = held.Libraries
		}
		out.Extra = held.Edits
		out.Extra.Env = append(slices.Clone(out.Extra.Env), s.Env...)
		shares = append(shares, out)
	}
	spec, err := cdi.Spec(common, shares, limiter)
	if err != nil {
		return err
	}
	b, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(f.cdiDir, 0o755); err != nil {
		return err
	}
	if err := state.WriteFile(f.specPath(c.UID), b, 0o644); err != nil {
		return err
	}
	record := state.New(boot)
	record.Put(c)
	if b, err = state.Encode(record); err != nil {
		return err
	}
	return state.WriteFile(filepath.Join(f.claimDir(c.UID), recordName), b, 0o600)
}

// hold has the share's backend make what the share needs.
func (f *files) hold(ctx context.Context, uid types.UID, s state.Share) (enforce.Result, error) {
	by := enforcementOf(s)
	if by == config.None {
		return enforce.Result{}, nil
	}
	b, ok := f.backends[by]
	if !ok {
		return enforce.Result{}, fmt.Errorf("the share is enforced by %s, which this driver does not have", by)
	}
	return b.Prepare(ctx, f.share(uid, s))
}

// share is what a backend is told.
func (f *files) share(uid types.UID, s state.Share) enforce.Share {
	name := deviceName(uid, s)
	out := enforce.Share{Share: s, Name: name, Dir: filepath.Join(f.claimDir(uid), name)}
	if len(s.Cards) > 0 {
		out.ContextOverhead = f.overhead(s.Cards[0])
	}
	return out
}

// enforcementOf is what holds a share of the checkpoint.
func enforcementOf(s state.Share) config.Enforcement {
	switch {
	case s.Enforcement != "":
		return config.Enforcement(s.Enforcement)
	case s.Limited:
		return config.Limiter
	}
	return config.None
}

// inUse tells whether containers of a claim run. mounted are all mounts, or
// why they are not known; then they may.
func (f *files) inUse(c state.Claim, cp *state.Checkpoint, mounted func() (mounts, error)) bool {
	for _, s := range c.Shares {
		if b, ok := f.backends[enforcementOf(s)]; ok && b.InUse(f.share(c.UID, s)) {
			return true
		}
	}
	m, err := mounted()
	return err != nil || m.has(c, cp)
}

// there tells whether all that a prepared claim needs exists.
func (f *files) there(c state.Claim) bool {
	if _, err := os.Stat(f.specPath(c.UID)); err != nil {
		return false
	}
	for _, s := range c.Shares {
		if b, ok := f.backends[enforcementOf(s)]; ok && !b.There(f.share(c.UID, s)) {
			return false
		}
	}
	return true
}

// settle has the backends end what no prepared share needs.
func (f *files) settle(ctx context.Context, cp *state.Checkpoint) error {
	var errs []error
	for _, by := range slices.Sorted(maps.Keys(f.backends)) {
		b, ok := f.backends[by].(enforce.Settler)
		if !ok {
			continue
		}
		var live []enforce.Share
		for _, c := range cp.HeldBy(string(by)) {
			for _, s := range c.Shares {
				if enforcementOf(s) == by {
					live = append(live, f.share(c.UID, s))
				}
			}
		}
		if err := b.Settle(ctx, live); err != nil {
			errs = append(errs, fmt.Errorf("enforcement %s: %w", by, err))
		}
	}
	return errors.Join(errs...)
}

// settlers tells whether any prepared share is held by a backend that has
// something to settle.
func (f *files) settlers(cp *state.Checkpoint) bool {
	for by, b := range f.backends {
		if _, ok := b.(enforce.Settler); ok && len(cp.HeldBy(string(by))) > 0 {
			return true
		}
	}
	return false
}

// remove takes a claim's files away; files that are not there are no error.
func (f *files) remove(uid types.UID) error {
	err := os.Remove(f.specPath(uid))
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return errors.Join(err, os.RemoveAll(f.claimDir(uid)))
}

// removeMetadata takes away the plugin helper's files of a claim for which
// nobody will call Unprepare.
func (f *files) removeMetadata(c state.Claim) error {
	specs, err := filepath.Glob(filepath.Join(f.cdiDir, metadataPrefix+string(c.UID)+"_*.json"))
	for _, name := range specs {
		err = errors.Join(err, os.Remove(name))
	}
	return errors.Join(err, os.RemoveAll(filepath.Join(f.metadata, c.Namespace+"_"+c.Name)))
}

// metadataPrefix begins the names of the helper's CDI specs; the claim's UID
// and an underscore follow.
const metadataPrefix = driver.Name + "_metadata_"

// sweep removes files of claims that the checkpoint does not have and returns
// the UIDs of those with files of our own. What containers have mounted is
// held, whatever the checkpoint says: its record could not be read.
func (f *files) sweep(cp *state.Checkpoint) (swept, held []types.UID, err error) {
	mine := map[types.UID]bool{}
	metadata := map[types.UID][]string{} // specs of the helper's
	unknown := func(uid types.UID) bool { _, ok := cp.Get(uid); return !ok }
	shares, err1 := entries(f.sharesDir)
	for _, name := range shares {
		if uid := types.UID(name); unknown(uid) {
			mine[uid] = true
		}
	}
	specs, err2 := entries(f.cdiDir)
	for _, name := range specs {
		if uid, ok := cdi.ClaimOf(name); ok && unknown(types.UID(uid)) {
			mine[types.UID(uid)] = true
		}
		if rest, ok := strings.CutPrefix(name, metadataPrefix); ok {
			uid, _, _ := strings.Cut(rest, "_")
			if unknown(types.UID(uid)) {
				metadata[types.UID(uid)] = append(metadata[types.UID(uid)], filepath.Join(f.cdiDir, name))
			}
		}
	}
	named := map[string]bool{}
	for _, c := range cp.Claims() {
		named[c.Namespace+"_"+c.Name] = true
	}
	folders, err3 := entries(f.metadata)
	folders = slices.DeleteFunc(folders, func(name string) bool { return named[name] })
	errs := []error{err1, err2, err3}
	if len(mine)+len(metadata)+len(folders) > 0 {
		mounted, err := mountsOf(f.proc)
		if err != nil {
			return nil, nil, errors.Join(append(errs, fmt.Errorf("who has files mounted: %w", err))...)
		}
		for uid := range mine {
			if mounted.claims[uid] {
				held = append(held, uid)
				continue
			}
			swept = append(swept, uid)
			errs = append(errs, f.remove(uid))
		}
		for uid, specs := range metadata {
			for _, name := range specs {
				if !mounted.claims[uid] {
					errs = append(errs, os.Remove(name))
				}
			}
		}
		for _, name := range folders {
			if !mounted.named[name] {
				errs = append(errs, os.RemoveAll(filepath.Join(f.metadata, name)))
			}
		}
	}
	slices.Sort(swept)
	slices.Sort(held)
	return swept, held, errors.Join(errs...)
}

// sweepTemporary removes what a killed process left of files that it was
// writing. The caller has the checkpoint, so that nobody writes now.
func (f *files) sweepTemporary() error {
	var errs []error
	for _, pattern := range []string{
		state.Temporary(filepath.Join(f.cdiDir, cdi.FileName("*"))),
		state.Temporary(filepath.Join(filepath.Dir(f.sharesDir), "checkpoint.*")),
		state.Temporary(filepath.Join(filepath.Dir(f.sharesDir), orderName)),
	} {
		names, err := filepath.Glob(pattern)
		errs = append(errs, err)
		for _, name := range names {
			errs = append(errs, os.Remove(name))
		}
	}
	return errors.Join(errs...)
}

// entries lists a folder; one that is not there is empty.
func entries(dir string) ([]string, error) {
	list, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	var out []string
	for _, e := range list {
		out = append(out, e.Name())
	}
	return out, err
}

// rebuild makes a checkpoint from the records among the claims' files. Only
// records of this boot count; the rest is swept later, unless containers have
// it mounted.
func (f *files) rebuild(boot string) *state.Checkpoint {
	cp := state.New(boot)
	names, _ := filepath.Glob(filepath.Join(f.sharesDir, "*", recordName))
	for _, name := range names {
		b, err := os.ReadFile(name)
		if err != nil {
			continue
		}
		record, err := state.Salvage(b) // after a downgrade it is of a later version
		if err != nil || record.BootID != boot {
			continue
		}
		for _, c := range record.Claims() {
			cp.Put(c)
		}
	}
	return cp
}
