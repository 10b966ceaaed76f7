package monitor

import (
	"bytes"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sluice-gpu/sluice/cdi"
	"github.com/sluice-gpu/sluice/driver/mps"
	"github.com/sluice-gpu/sluice/hook/account"
)

// Owner tells whose a process is, as far as the kernel knows.
type Owner struct {
	// Pod is the UID of its pod; empty for a process of no pod.
	Pod types.UID
	// Container is the container's name in the pod; empty where unknown.
	Container string
	// Server tells that it is an MPS server, which runs for the shares of its card
	// and is none of theirs.
	Server bool
	// Shares are the names of the shares whose files it has mounted.
	Shares []string
}

// podInCgroup finds a pod's folder in a cgroup path: "pod<uid>" by the cgroupfs
// driver, "kubepods-burstable-pod<uid with _>.slice" by systemd's.
var podInCgroup = regexp.MustCompile(`(?:^|[/-])pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12})(?:\.slice)?(?:/|$)`)

// podOf reads /proc/<pid>/cgroup. Where a process is in several hierarchies,
// the first that names a pod is believed.
func podOf(cgroup []byte) types.UID {
	for line := range bytes.Lines(cgroup) {
		// hierarchy:controllers:path; the path may have colons
		parts := bytes.SplitN(bytes.TrimSpace(line), []byte(":"), 3)
		if len(parts) != 3 {
			continue
		}
		if m := podInCgroup.FindSubmatch(parts[2]); m != nil {
			return types.UID(strings.ReplaceAll(string(m[1]), "_", "-"))
		}
	}
	return ""
}

// serverIn tells whether /proc/<pid>/cgroup is that of an MPS daemon or server,
// which are in a group of their own beside those of pods.
func serverIn(cgroup []byte) bool {
	for line := range bytes.Lines(cgroup) {
		if path.Base(string(bytes.TrimSpace(line))) == mps.Group {
			return true
		}
	}
	return false
}

// containerOf reads /proc/<pid>/mountinfo (proc_pid_mountinfo(5)). The kubelet
// keeps the container's termination log in a folder that is named after it;
// the shares' files are mounted in folders with their names.
func containerOf(mountinfo []byte, pod types.UID) (container string, shares []string) {
	inPods := "/pods/" + string(pod) + "/containers/"
	for line := range bytes.Lines(mountinfo) {
		fields := strings.Fields(string(line))
		if len(fields) < 5 {
			continue
		}
		root, at := fields[3], fields[4]
		if _, rest, ok := strings.Cut(root, inPods); ok && container == "" {
			container, _, _ = strings.Cut(rest, "/")
		}
		if name := path.Base(at); (name == account.AccountFile || name == mps.ShareFile) && path.Dir(path.Dir(at)) == cdi.SharesDir {
			shares = append(shares, path.Base(path.Dir(at)))
		}
	}
	return container, shares
}

// owners reads whose processes are, and remembers it while their cgroup stays
// the same.
type owners struct {
	proc  string // where procfs is mounted
	known map[int]owned
}

type owned struct {
	cgroup string
	Owner
}

// of returns the owners of those processes that still exist.
func (o *owners) of(pids []int) map[int]Owner {
	out := map[int]Owner{}
	next := map[int]owned{}
	for _, pid := range pids {
		dir := filepath.Join(o.proc, strconv.Itoa(pid))
		cgroup, err := os.ReadFile(filepath.Join(dir, "cgroup"))
		if err != nil {
			continue
		}
		have, ok := o.known[pid]
		if !ok || have.cgroup != string(cgroup) {
			have = owned{cgroup: string(cgroup), Owner: Owner{Pod: podOf(cgroup), Server: serverIn(cgroup)}}
			if have.Pod != "" {
				mounts, err := os.ReadFile(filepath.Join(dir, "mountinfo"))
				if err != nil {
					continue
				}
				have.Container, have.Shares = containerOf(mounts, have.Pod)
			}
		}
		next[pid], out[pid] = have, have.Owner
	}
	o.known = next
	return out
}
