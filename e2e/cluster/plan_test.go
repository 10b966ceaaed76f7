package cluster

import (
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestAddressesOfNodesAndPodsDoNotOverlap(t *testing.T) {
	machines := netip.PrefixFrom(netip.MustParseAddr(controlPlaneIP), machineBits).Masked()
	services := netip.MustParsePrefix(serviceCIDR)
	if !services.Contains(netip.MustParseAddr(apiServiceIP)) {
		t.Errorf("service address %s is not in %s", apiServiceIP, services)
	}
	seen := map[netip.Addr]int{netip.MustParseAddr(controlPlaneIP): 0}
	for i := 1; i <= maxNodes; i++ {
		ip := nodeIP(i)
		if other, taken := seen[ip]; taken || !machines.Contains(ip) {
			t.Errorf("node %d has %s: in %s %v, also of %d", i, ip, machines, machines.Contains(ip), other)
		}
		seen[ip] = i
		for _, taken := range []netip.Prefix{machines, services, podCIDR(i%maxNodes + 1)} {
			if podCIDR(i).Overlaps(taken) {
				t.Errorf("pods of node %d, %s, overlap %s", i, podCIDR(i), taken)
			}
		}
	}
}

func TestNetworkPlanConnectsEveryMachineAndRoutesEveryPodRange(t *testing.T) {
	got := networkPlan("demo", DefaultConfig(2))
	want := []ipCommand{
		{batch: []string{"netns add sluice.demo.net", "netns add sluice.demo.control-plane", "netns add sluice.demo.node-1", "netns add sluice.demo.node-2"}},
		{netns: "sluice.demo.net", batch: []string{
			"link set lo up", "link add br0 type bridge", "link set br0 up",
			"link add cp type veth peer name eth0 netns sluice.demo.control-plane", "link set cp master br0 up",
			"link add node1 type veth peer name eth0 netns sluice.demo.node-1", "link set node1 master br0 up",
			"link add node2 type veth peer name eth0 netns sluice.demo.node-2", "link set node2 master br0 up",
		}},
		{netns: "sluice.demo.control-plane", batch: []string{
			"link set lo up", "addr add 10.77.0.2/24 dev eth0", "link set eth0 up", "addr add 10.96.0.1/32 dev lo",
			"route add 10.88.1.0/24 via 10.77.0.11", "route add 10.88.2.0/24 via 10.77.0.12",
		}},
		{netns: "sluice.demo.node-1", batch: []string{
			"link set lo up", "addr add 10.77.0.11/24 dev eth0", "link set eth0 up",
			"route add 10.96.0.1/32 via 10.77.0.2", "route add prohibit 10.96.0.0/16", "route add 10.88.2.0/24 via 10.77.0.12",
		}},
		{netns: "sluice.demo.node-2", batch: []string{
			"link set lo up", "addr add 10.77.0.12/24 dev eth0", "link set eth0 up",
			"route add 10.96.0.1/32 via 10.77.0.2", "route add prohibit 10.96.0.0/16", "route add 10.88.1.0/24 via 10.77.0.11",
		}},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(ipCommand{})); diff != "" {
		t.Error(diff)
	}
}

func TestInterfaceNamesFitTheKernel(t *testing.T) {
	const most = 15 // IFNAMSIZ less the closing zero
	for i := range maxNodes + 1 {
		if name := port(i); len(name) > most {
			t.Errorf("port of machine %d: %q has %d bytes, want at most %d", i, name, len(name), most)
		}
	}
}

func TestCgroupVersionIsThatOfTheControllers(t *testing.T) {
	const (
		v1      = "30 20 0:26 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n31 20 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
		unified = "32 20 0:28 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n"
		v2      = "30 20 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
		other   = "21 20 0:4 / /proc rw - proc proc rw\nshort line\n"
	)
	tests := map[string]struct {
		mountinfo string
		want      cgroups
		err       string
	}{
		"version 1":                     {mountinfo: other + v1, want: cgroups{hierarchies: []string{"/sys/fs/cgroup/cpu", "/sys/fs/cgroup/memory"}}},
		"version 1, and an empty 2":     {mountinfo: v1 + unified + other, want: cgroups{hierarchies: []string{"/sys/fs/cgroup/cpu", "/sys/fs/cgroup/memory"}, beside: "/sys/fs/cgroup/unified"}},
		"version 2":                     {mountinfo: other + v2, want: cgroups{unified: "/sys/fs/cgroup"}},
		"version 1, one mounted doubly": {mountinfo: v1 + v1, want: cgroups{hierarchies: []string{"/sys/fs/cgroup/cpu", "/sys/fs/cgroup/memory"}}},
		"none":                          {mountinfo: other, err: "no cgroup hierarchy is mounted: mount cgroup2 on /sys/fs/cgroup"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := detectCgroups([]byte(test.mountinfo))
			if (err != nil) != (test.err != "") || err != nil && err.Error() != test.err {
				t.Fatalf("error %v, want %q", err, test.err)
			}
			if diff := cmp.Diff(test.want, got, cmp.AllowUnexported(cgroups{})); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestCgroupPassesControllersOnOrInheritsCpusets(t *testing.T) {
	write := func(file, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	read := func(file string) string {
		t.Helper()
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	t.Run("version 2", func(t *testing.T) {
		root := t.TempDir()
		dirs := []string{"", "sluice-e2e", "sluice-e2e/demo", "sluice-e2e/demo/n"}
		for _, dir := range dirs { // the kernel makes these files
			write(filepath.Join(root, dir, "cgroup.controllers"), "cpuset cpu io rdma\n")
		}
		if err := (cgroups{unified: root}).create(cgroupPath("demo", "n")); err != nil {
			t.Fatal(err)
		}
		for _, dir := range dirs {
			if got := read(filepath.Join(root, dir, "cgroup.subtree_control")); got != "+cpuset +cpu +io" {
				t.Errorf("%s passes on %q", dir, got)
			}
		}
	})
	t.Run("version 1", func(t *testing.T) {
		cpuset, memory := t.TempDir(), t.TempDir()
		write(filepath.Join(cpuset, "cpuset.cpus"), "0-1\n")
		write(filepath.Join(cpuset, "cpuset.mems"), "0\n")
		if err := (cgroups{hierarchies: []string{cpuset, memory}}).create(cgroupPath("demo", "n")); err != nil {
			t.Fatal(err)
		}
		for _, dir := range []string{"sluice-e2e", "sluice-e2e/demo", "sluice-e2e/demo/n"} {
			if cpus, mems := read(filepath.Join(cpuset, dir, "cpuset.cpus")), read(filepath.Join(cpuset, dir, "cpuset.mems")); cpus != "0-1" || mems != "0" {
				t.Errorf("%s: cpus %q, mems %q", dir, cpus, mems)
			}
			if _, err := os.Stat(filepath.Join(memory, dir)); err != nil {
				t.Error(err)
			}
		}
	})
}

func TestMountsBelowReplacedFoldersAreDroppedDeepestFirst(t *testing.T) {
	mountinfo := strings.Join([]string{
		`20 1 8:1 / / rw - ext4 /dev/vda rw`,
		`21 20 0:4 / /run rw - tmpfs tmpfs rw`,
		`22 21 0:5 / /run/netns rw - tmpfs tmpfs rw`,
		`23 22 0:6 / /run/netns/sluice.other.node-1 rw - nsfs nsfs rw`,
		`24 20 0:7 / /var/lib/with\040space rw - ext4 /dev/vdb rw`,
		`25 20 0:7 / /var/lib/state rw - ext4 /dev/vdc rw`,
		`26 25 0:8 / /var/lib/state/demo/stage rw - tmpfs tmpfs rw`,
		`27 26 0:9 / /var/lib/state/demo/stage/run rw - tmpfs tmpfs rw`,
		`28 20 0:9 / /home rw - ext4 /dev/vdd rw`,
		`29 20 0:9 / /var/lib/state/demo/stage2 rw - ext4 /dev/vdd rw`,
	}, "\n")
	want := []string{"/var/lib/state/demo/stage2", "/var/lib/with space", "/run/netns/sluice.other.node-1", "/run/netns"}
	if diff := cmp.Diff(want, mountsToDrop([]byte(mountinfo), "/var/lib/state/demo/stage")); diff != "" {
		t.Error(diff)
	}
}

func TestProcessIsToldByItsStartWhateverItsName(t *testing.T) {
	const rest = " S 1 2 3 0 -1 4194560 1 0 0 0 1 2 3 4 20 0 1 0 132966 5 6"
	for _, command := range []string{"(etcd)", "(a) b)", "(with space)"} {
		got, err := parseStat([]byte("77 " + command + rest))
		if want := (stat{state: 'S', threads: 1, started: 132966}); err != nil || got != want {
			t.Errorf("%s: %+v, %v, want %+v", command, got, err, want)
		}
	}
	for _, bad := range []string{"", "77 (x) S 1", "77 x S 1 2"} {
		if _, err := parseStat([]byte(bad)); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
}

func TestBaseSpecGivesEveryContainerTheHardwareFolder(t *testing.T) {
	out, err := baseSpec([]byte(`{"ociVersion": "1.2.0", "process": {"args": ["sh"]}, "mounts": [{"destination": "/proc"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	var spec struct {
		OCIVersion string `json:"ociVersion"`
		Mounts     []struct {
			Destination, Source, Type string
			Options                   []string
		}
	}
	if err := json.Unmarshal(out, &spec); err != nil {
		t.Fatal(err)
	}
	if spec.OCIVersion != "1.2.0" || len(spec.Mounts) != 2 || spec.Mounts[0].Destination != "/proc" {
		t.Errorf("what was there is changed: %s", out)
	}
	if m := spec.Mounts[1]; m.Source != HardwareDir || m.Destination != HardwareDir || !slices.Contains(m.Options, "rw") {
		t.Errorf("the hardware's mount is %+v", m)
	}
	for _, bad := range []string{"", "{}", `{"mounts": 1}`} {
		if _, err := baseSpec([]byte(bad)); err == nil {
			t.Errorf("%q was taken for a specification", bad)
		}
	}
}

func TestFeatureGatesReachEveryComponent(t *testing.T) {
	c := DefaultConfig(1)
	c.FeatureGates = map[string]bool{"B": false, "A": true}
	for _, k := range controlPlaneComponents(c) {
		if has := slices.Contains(k.args, "--feature-gates=A=true,B=false"); has != (k.name != "etcd") {
			t.Errorf("%s: %v", k.name, k.args)
		}
	}
	kubelet, err := kubeletConfig("x", c, c.Nodes[0])
	if err != nil || !strings.Contains(string(kubelet), "featureGates:\n  A: true\n  B: false\n") {
		t.Errorf("kubelet: %v\n%s", err, kubelet)
	}
}

func TestKubeletKeepsToItsOwnCgroupAndFolders(t *testing.T) {
	c := Config{Nodes: []Node{{Name: "n", Taints: []string{"k=v:NoSchedule", "only-key:NoExecute"}}}}
	got, err := kubeletConfig("demo", c, c.Nodes[0])
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"cgroupRoot: /sluice-e2e/demo/n\n", "volumePluginDir: /var/lib/", "enforceNodeAllocatable: []\n", "evictionHard: {}\n",
		"- effect: NoSchedule\n  key: k\n  value: v\n", "- effect: NoExecute\n  key: only-key\n",
	} {
		if !strings.Contains(string(got), want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
}
