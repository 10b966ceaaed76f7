package monitor

import (
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/sluice-gpu/sluice/hook/account"
)

const mi = 1 << 20

const podUID = "068b1ce2-00ca-40cc-9604-0799d2241a4b"

func TestThePodOfACgroupIsFoundAsEachCgroupDriverWritesIt(t *testing.T) {
	for name, tc := range map[string]struct{ cgroup, want string }{
		"cgroupfs":               {"0::/kubepods/besteffort/pod" + podUID + "/e2d87df14c66", podUID},
		"cgroupfs, guaranteed":   {"0::/kubepods/pod" + podUID + "/e2d87df14c66", podUID},
		"systemd":                {"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + strings.ReplaceAll(podUID, "-", "_") + ".slice/cri-containerd-e2d8.scope", podUID},
		"from another namespace": {"0::/../../pod" + podUID + "/e2d87df14c66", podUID},
		"version 1":              {"9:name=systemd:/\n8:pids:/a/kubepods/pod" + podUID + "/e2\n7:blkio:/", podUID},
		"a colon in the path":    {"0::/a:b/pod" + podUID, podUID},
		"a host service":         {"0::/system.slice/nvidia-persistenced.service", ""},
		"a folder like a pod's":  {"0::/podman/pod" + podUID[:20], ""},
		"nothing":                {"", ""},
		"no cgroup file":         {"garbage", ""},
	} {
		if got := podOf([]byte(tc.cgroup)); string(got) != tc.want {
			t.Errorf("%s: pod %q, want %q", name, got, tc.want)
		}
	}
}

func TestTheContainerAndItsSharesAreFoundInItsMounts(t *testing.T) {
	mounts := `338 331 254:0 /var/lib/kubelet/pods/` + podUID + `/etc-hosts /etc/hosts rw,relatime - ext4 /dev/vda rw
339 333 254:0 /var/lib/kubelet/pods/` + podUID + `/containers/trainer/d5c9e90e /dev/termination-log rw,relatime - ext4 /dev/vda rw
340 333 254:0 /x/shares/uid/uid-gpu-1-s/limit /run/sluice/shares/uid-gpu-1-s/limit ro - ext4 /dev/vda rw
341 333 254:0 /x/shares/uid/uid-gpu-1-s/account /run/sluice/shares/uid-gpu-1-s/account rw - ext4 /dev/vda rw
342 333 254:0 /x/shares/uid/uid-gpu-2-s/account /run/sluice/shares/uid-gpu-2-s/account rw - ext4 /dev/vda rw
short line
`
	container, shares := containerOf([]byte(mounts), podUID)
	if container != "trainer" || !slices.Equal(shares, []string{"uid-gpu-1-s", "uid-gpu-2-s"}) {
		t.Errorf("container %q with shares %v", container, shares)
	}
	if container, _ := containerOf([]byte(mounts), "another"); container != "" {
		t.Errorf("a container %q of another pod", container)
	}
}

func share(name, claim string, limit uint64) Share {
	return Share{Name: name, ClaimUID: types.UID(claim), Limit: limit, Device: "gpu-1", Dir: "x"}
}

func of(pid int, pod string, shares ...string) Process {
	return Process{PID: pid, Memory: 1, Owner: Owner{Pod: types.UID(pod), Shares: shares}}
}

func TestProcessesAreAssignedToTheSharesOfTheirPod(t *testing.T) {
	shares := []Share{share("a", "A", 1), share("b", "B", 1), share("c", "C", 1)}
	users := map[types.UID][]Pod{"A": {{UID: "p1"}}, "B": {{UID: "p1"}, {UID: "p2"}}, "C": {{UID: "p3"}}}
	for name, tc := range map[string]struct {
		processes []Process
		want      []string // shares / pids
		foreign   []int
	}{
		"the only share of the pod":           {[]Process{of(1, "p2")}, []string{"b/1"}, nil},
		"a share of another pod is not taken": {[]Process{of(1, "p2", "c")}, []string{"b/1"}, nil},
		"containers of a pod apart":           {[]Process{of(1, "p1", "a"), of(2, "p1", "b")}, []string{"a/1", "b/2"}, nil},
		"two shares in a container":           {[]Process{of(1, "p1", "a", "b")}, []string{"ab/1"}, nil},
		"joined by one container":             {[]Process{of(1, "p1", "a"), of(2, "p2", "b"), of(3, "p1", "a", "b")}, []string{"ab/123"}, nil},
		"mounts while the pods are not known": {[]Process{of(1, "new", "c")}, []string{"c/1"}, nil},
		"no pod":                              {[]Process{of(1, ""), of(2, "p3")}, []string{"c/2"}, []int{1}},
		"a pod without a share":               {[]Process{of(1, "other")}, nil, []int{1}},
	} {
		groups, foreign := assign(shares, users, tc.processes)
		var got []string
		for _, g := range groups {
			text := ""
			for _, s := range g.shares {
				text += s.Name
			}
			text += "/"
			slices.SortFunc(g.processes, func(a, b Process) int { return a.PID - b.PID })
			for _, p := range g.processes {
				text += string(rune('0' + p.PID))
			}
			got = append(got, text)
		}
		slices.Sort(got)
		if !slices.Equal(got, tc.want) || !slices.Equal(pids(foreign), tc.foreign) {
			t.Errorf("%s: groups %v, foreign %v; want %v, %v", name, got, pids(foreign), tc.want, tc.foreign)
		}
	}
}

func usage(processes ...account.Process) account.Usage {
	var u account.Usage
	for _, p := range processes {
		u.Memory += p.Memory
	}
	u.Processes = processes
	return u
}

func TestWhatAContextTakesIsWhatNoAccountHas(t *testing.T) {
	p := account.Process{Memory: 1000 * mi, Contexts: 1}
	followed := account.Process{Memory: 1300 * mi, Contexts: 1, ContextOverhead: 300 * mi}
	for name, tc := range map[string]struct {
		nvml   uint64
		usages []account.Usage
		want   uint64
		ok     bool
	}{
		"nothing charged yet":             {1300 * mi, []account.Usage{usage(p)}, 300 * mi, true},
		"all charged":                     {1300 * mi, []account.Usage{usage(followed)}, 300 * mi, true},
		"grown since":                     {1350 * mi, []account.Usage{usage(followed)}, 350 * mi, true},
		"charged too much":                {1200 * mi, []account.Usage{usage(followed)}, 200 * mi, true},
		"one has followed, one not":       {2600 * mi, []account.Usage{usage(p, followed)}, 300 * mi, true},
		"over two shares":                 {2600 * mi, []account.Usage{usage(p), usage(followed)}, 300 * mi, true},
		"less than charged":               {10 * mi, []account.Usage{usage(p)}, 0, true},
		"rounded up to what is counted":   {1000*mi + 1, []account.Usage{usage(p)}, account.Unit, true},
		"no context":                      {100 * mi, []account.Usage{usage(account.Process{})}, 0, false},
		"no account":                      {100 * mi, nil, 0, false},
		"more than a context can be":      {1 << 40, []account.Usage{usage(p)}, maxOverhead, true},
		"an account that says what it is": {1 * mi, []account.Usage{usage(account.Process{Contexts: ^uint32(0), ContextOverhead: account.MaxMemory})}, maxOverhead, true},
	} {
		got, ok := contextOverhead(tc.nvml, tc.usages)
		if got != tc.want || ok != tc.ok {
			t.Errorf("%s: %d, %v; want %d, %v", name, got, ok, tc.want, tc.ok)
		}
	}
}

// TestRaisingOnceIsEnough plays processes of which each follows a grant when it
// likes: the grant reaches what contexts take and never more.
func TestRaisingOnceIsEnough(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		truth := rapid.Uint64Range(0, 2048).Draw(t, "truth") * mi
		processes := make([]account.Process, rapid.IntRange(1, 4).Draw(t, "processes"))
		var grant, real uint64
		for i := range processes {
			n := rapid.Uint32Range(1, 3).Draw(t, "contexts")
			alloc := rapid.Uint64Range(0, 100).Draw(t, "alloc") * mi
			processes[i] = account.Process{Contexts: n, Memory: alloc}
			real += alloc + uint64(n)*truth
		}
		for range 10 {
			each, _ := contextOverhead(real, []account.Usage{usage(processes...)})
			grant = max(grant, each)
			if grant != truth {
				t.Fatalf("contexts take %d, granted %d with %+v", truth, grant, processes)
			}
			p := &processes[rapid.IntRange(0, len(processes)-1).Draw(t, "follows")]
			p.Memory += uint64(p.Contexts) * (grant - p.ContextOverhead)
			p.ContextOverhead = grant
		}
	})
}

func TestTheFirstChargeIsWhatTheModelTookLast(t *testing.T) {
	var m memory
	if m.start("c1") != 0 {
		t.Error("something is known before anything was seen")
	}
	m.card("c1", "A100, driver 1")
	m.card("c2", "A100, driver 1")
	m.card("c3", "T4, driver 1")
	m.learn("c1", "s1", 300*mi)
	m.learn("c1", "s2", 300*mi)
	m.learn("c1", "greedy", 900*mi)
	if m.start("c2") != 300*mi || m.start("c3") != 0 {
		t.Errorf("another card of the model starts with %d, one of another model with %d", m.start("c2"), m.start("c3"))
	}
	for i := range 20 {
		m.learn("c2", "t"+string(rune('a'+i)), 500*mi)
	}
	if m.start("c1") != 500*mi {
		t.Errorf("old values outlive new ones: %d", m.start("c1"))
	}
	m.card("c1", "A100, driver 2")
	if m.start("c1") != 0 {
		t.Error("a new driver begins with what the old one took")
	}
	m.learn("c3", "only", 3<<30)
	if m.start("c3") != 0 {
		t.Errorf("more than a context can take is a first charge: %d", m.start("c3"))
	}
}

func TestWhatContextsTookOutlivesARestart(t *testing.T) {
	name := t.TempDir() + "/memory.json"
	var m memory
	m.card("c1", "A100")
	m.learn("c1", "s", 300*mi)
	if err := saveMemory(name, m); err != nil {
		t.Fatal(err)
	}
	again, err := loadMemory(name)
	if err != nil || again.start("c1") != 300*mi {
		t.Errorf("read %+v, %v", again, err)
	}
	if m, err := loadMemory(name + ".none"); err != nil || m.start("c1") != 0 {
		t.Errorf("no file: %v", err)
	}
}

func TestAGroupsMemoryIsSplitWithoutRest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var shares []Share
		for range rapid.IntRange(1, 4).Draw(t, "shares") {
			shares = append(shares, share("s", "c", rapid.Uint64Range(0, 1<<40).Draw(t, "limit")))
		}
		memory := rapid.Uint64Range(0, 1<<40).Draw(t, "memory")
		var sum uint64
		for _, v := range split(memory, shares) {
			sum += v
		}
		if sum != memory {
			t.Fatalf("%d of %d", sum, memory)
		}
	})
}
