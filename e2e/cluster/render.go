package cluster

import (
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// Paths inside a machine.
const (
	// confDir holds what this package writes for the machine's daemons. Like all of /var/lib it
	// survives a reboot.
	confDir = "/var/lib/sluice-machine"
	// binDir shows the cache's binaries.
	binDir = "/run/sluice/bin"
	// containerdSocket is where the kubelet and ctr find containerd.
	containerdSocket = "/run/containerd/containerd.sock"
	// BootIDFile holds the machine's boot id, new at every boot. It is also mounted over
	// /proc/sys/kernel/random/boot_id, but a container mounts a /proc of its own and sees the
	// outer machine's there: what runs in a pod must be given this file.
	BootIDFile = "/run/boot_id"
	// HardwareDir is where the simulated cards keep what all processes of the node share. Every
	// container has it too, as a real container has the hardware's bus. Its content is lost at a
	// reboot.
	HardwareDir = "/run/fakegpu"
	// DriverRoot is the root of the node's GPU driver installation.
	DriverRoot = "/run/nvidia/driver"
)

// PauseImage is the image of pod sandboxes.
const PauseImage = "localhost/sluice/pause:1"

// component is a daemon of a machine.
type component struct {
	name string // as `restart` names it
	path string
	args []string
}

func conf(file string) string { return path.Join(confDir, file) }

// controlPlaneComponents are the daemons of the control plane, in the order in which they start.
func controlPlaneComponents(c Config) []component {
	gates := featureGates(c.FeatureGates)
	return []component{
		{name: "etcd", path: path.Join(binDir, "etcd"), args: []string{
			"--data-dir=/var/lib/etcd",
			// The cluster is thrown away when the machine is, so nothing waits for the disk.
			"--unsafe-no-fsync",
		}},
		{name: "apiserver", path: path.Join(binDir, "kube-apiserver"), args: slices.Concat([]string{
			"--etcd-servers=http://127.0.0.1:2379",
			"--advertise-address=" + controlPlaneIP,
			fmt.Sprintf("--secure-port=%d", apiPort),
			"--service-cluster-ip-range=" + serviceCIDR,
			"--client-ca-file=" + conf("ca.crt"),
			"--tls-cert-file=" + conf("apiserver.crt"),
			"--tls-private-key-file=" + conf("apiserver.key"),
			"--kubelet-certificate-authority=" + conf("ca.crt"),
			"--kubelet-client-certificate=" + conf("kubelet-client.crt"),
			"--kubelet-client-key=" + conf("kubelet-client.key"),
			// There is no DNS that knows the nodes' names.
			"--kubelet-preferred-address-types=InternalIP",
			"--service-account-key-file=" + conf("service-account.pub"),
			"--service-account-signing-key-file=" + conf("service-account.key"),
			"--service-account-issuer=https://kubernetes.default.svc",
			"--authorization-mode=Node,RBAC",
			"--enable-admission-plugins=NodeRestriction",
			"--allow-privileged=true",
			// Webhooks are reached at their pods' addresses: no kube-proxy serves service addresses.
			"--enable-aggregator-routing=true",
		}, gates)},
		{name: "controller-manager", path: path.Join(binDir, "kube-controller-manager"), args: slices.Concat([]string{
			"--kubeconfig=" + conf("controller-manager.kubeconfig"),
			"--service-account-private-key-file=" + conf("service-account.key"),
			"--root-ca-file=" + conf("ca.crt"),
			"--use-service-account-credentials=true",
			"--leader-elect=false",
		}, gates)},
		{name: "scheduler", path: path.Join(binDir, "kube-scheduler"), args: slices.Concat([]string{
			"--kubeconfig=" + conf("scheduler.kubeconfig"),
			"--leader-elect=false",
		}, gates)},
	}
}

// nodeComponents are the daemons of the i-th node, in the order in which they start.
func nodeComponents(c Config, i int) []component {
	n := c.Nodes[i-1]
	labels, _ := splitLabels(n.Labels)
	kubelet := []string{
		"--config=" + conf("kubelet.yaml"),
		"--kubeconfig=" + conf("kubelet.kubeconfig"),
		"--hostname-override=" + n.Name,
		"--node-ip=" + nodeIP(i).String(),
		"--v=2",
	}
	if len(labels) > 0 {
		kubelet = append(kubelet, "--node-labels="+joinMap(labels))
	}
	return []component{
		{name: "containerd", path: path.Join(binDir, "containerd"), args: []string{"--config=" + conf("containerd.toml")}},
		{name: "kubelet", path: path.Join(binDir, "kubelet"), args: kubelet},
	}
}

// splitLabels tells the labels that a kubelet may give its own node at registration from those
// under Kubernetes' own domains, which NodeRestriction keeps from it and an administrator sets.
func splitLabels(labels map[string]string) (own, administrators map[string]string) {
	own, administrators = map[string]string{}, map[string]string{}
	for k, v := range labels {
		domain, _, _ := strings.Cut(k, "/")
		if strings.HasSuffix("."+domain, ".kubernetes.io") || strings.HasSuffix("."+domain, ".k8s.io") {
			administrators[k] = v
		} else {
			own[k] = v
		}
	}
	return own, administrators
}

func joinMap(m map[string]string) string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		parts = append(parts, k+"="+m[k])
	}
	return strings.Join(parts, ",")
}

func featureGates(gates map[string]bool) []string {
	if len(gates) == 0 {
		return nil
	}
	m := map[string]string{}
	for k, v := range gates {
		m[k] = fmt.Sprint(v)
	}
	return []string{"--feature-gates=" + joinMap(m)}
}

// kubeletConfig renders the KubeletConfiguration of a node.
func kubeletConfig(cluster string, c Config, n Node) ([]byte, error) {
	taints := []map[string]string{}
	for _, s := range n.Taints {
		t, err := parseTaint(s)
		if err != nil {
			return nil, err
		}
		taints = append(taints, map[string]string{"key": t.Key, "value": t.Value, "effect": string(t.Effect)})
	}
	type object = map[string]any
	config := object{
		"apiVersion": "kubelet.config.k8s.io/v1beta1",
		"kind":       "KubeletConfiguration",
		"authentication": object{
			"anonymous": object{"enabled": false},
			"webhook":   object{"enabled": true},
			"x509":      object{"clientCAFile": conf("ca.crt")},
		},
		"authorization":            object{"mode": "Webhook"},
		"tlsCertFile":              conf("kubelet.crt"),
		"tlsPrivateKeyFile":        conf("kubelet.key"),
		"containerRuntimeEndpoint": "unix://" + containerdSocket,
		"resolvConf":               "",
		// There is no DNS. A machine that is there refuses look-ups at once; without an address
		// every pod would carry a warning event.
		"clusterDNS": []string{apiServiceIP},
		// The usual folder is the outer machine's.
		"volumePluginDir":    "/var/lib/kubelet/volume-plugins",
		"registerWithTaints": taints,
		// Each kubelet keeps to a cgroup of its own: they share one kernel. It limits pods, but
		// cannot limit the sum of them, since the machine's resources are not its own.
		"cgroupDriver":           "cgroupfs",
		"cgroupRoot":             cgroupPath(cluster, n.Name),
		"enforceNodeAllocatable": []string{},
		"failCgroupV1":           false,
		"failSwapOn":             false,
		// The disk is the outer machine's: neither evict pods nor delete images, which no registry
		// could give back, because it fills up.
		"evictionHard":                object{},
		"imageGCHighThresholdPercent": 100,
		"imageGCLowThresholdPercent":  99,
	}
	if len(c.FeatureGates) > 0 {
		config["featureGates"] = c.FeatureGates
	}
	return yaml.Marshal(config)
}

// runtimePaths is what a node needs of the outer machine to run containers.
type runtimePaths struct {
	runc        string // the runc binary
	cniBin      string // the folder of CNI plugins
	snapshotter string // overlayfs, or native where the state folder is on an overlay itself
}

// containerdConfig renders containerd's configuration.
func containerdConfig(p runtimePaths) []byte {
	return fmt.Appendf(nil, `version = 4
root = '/var/lib/containerd'
state = '/run/containerd'

[grpc]
address = '%s'

[plugins.'io.containerd.cri.v1.images']
snapshotter = '%s'

[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = '%s'

[plugins.'io.containerd.cri.v1.runtime']
# Not /etc/cdi: that folder is the outer machine's.
cdi_spec_dirs = ['/var/run/cdi']
# Without CAP_SYS_RESOURCE runc may not lower an OOM score, and fails if asked to.
restrict_oom_score_adj = true

[plugins.'io.containerd.internal.v1.opt']
path = '/var/lib/containerd/opt'

[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = ['%s']
conf_dir = '%s'

[plugins.'io.containerd.cri.v1.runtime'.containerd]
default_runtime_name = 'runc'

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
runtime_type = 'io.containerd.runc.v2'
base_runtime_spec = '%s'

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
BinaryName = '%s'
SystemdCgroup = false
`, containerdSocket, p.snapshotter, PauseImage, p.cniBin, conf("cni"), conf("base-spec.json"), p.runc)
}

// cniConfig renders the network of the i-th node's pods: a bridge with a range of its own.
func cniConfig(i int) ([]byte, error) {
	type object = map[string]any
	return json.MarshalIndent(object{
		"cniVersion": "1.0.0",
		"name":       "pods",
		"plugins": []object{{
			"type":        "bridge",
			"bridge":      "cni0",
			"isGateway":   true,
			"hairpinMode": true,
			"ipam": object{
				"type":    "host-local",
				"dataDir": "/var/lib/cni/networks",
				"ranges":  [][]object{{{"subnet": podCIDR(i).String()}}},
				"routes":  []object{{"dst": "0.0.0.0/0"}},
			},
		}},
	}, "", "  ")
}

// baseSpec adds to containerd's default OCI runtime specification what every container of a node
// has: the simulated hardware's folder, writable.
func baseSpec(containerdDefault []byte) ([]byte, error) {
	var spec map[string]any
	if err := json.Unmarshal(containerdDefault, &spec); err != nil {
		return nil, fmt.Errorf("default runtime specification: %w", err)
	}
	mounts, ok := spec["mounts"].([]any)
	if !ok {
		return nil, fmt.Errorf("default runtime specification: no mounts in it")
	}
	spec["mounts"] = append(mounts, map[string]any{
		"destination": HardwareDir,
		"source":      HardwareDir,
		"type":        "bind",
		"options":     []string{"rbind", "rw", "nosuid"},
	})
	return json.MarshalIndent(spec, "", "  ")
}

// kubeconfig renders a kubeconfig that carries its credentials in itself.
func kubeconfig(ca []byte, user string, pair keyPair) ([]byte, error) {
	type object = map[string]any
	return yaml.Marshal(object{
		"apiVersion":      "v1",
		"kind":            "Config",
		"clusters":        []object{{"name": "local", "cluster": object{"server": apiServer(), "certificate-authority-data": ca}}},
		"users":           []object{{"name": user, "user": object{"client-certificate-data": pair.cert, "client-key-data": pair.key}}},
		"contexts":        []object{{"name": "local", "context": object{"cluster": "local", "user": user}}},
		"current-context": "local",
	})
}
