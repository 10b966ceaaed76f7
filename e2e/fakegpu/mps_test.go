package fakegpu

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// control starts the node's MPS control daemon and returns what speaks to it.
func control(t *testing.T, in *Installed) (env []string, speak func(string) string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "mps") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	cards, err := in.Node.cards()
	if err != nil {
		t.Fatal(err)
	}
	env = []string{"CUDA_MPS_PIPE_DIRECTORY=" + dir, "CUDA_MPS_LOG_DIRECTORY=" + dir, "CUDA_VISIBLE_DEVICES=" + cards[0].UUID}
	program := filepath.Join(in.DriverRoot, "usr/bin/nvidia-cuda-mps-control")
	d := exec.Command(program, "-f")
	d.Env = env
	var said bytes.Buffer
	d.Stderr = &said
	if err := d.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Process.Kill(); _ = d.Wait() })
	eventually(t, "the daemon makes its socket", func() bool {
		_, err := os.Stat(filepath.Join(dir, "control"))
		return err == nil
	})
	return env, func(command string) string {
		c := exec.Command(program)
		c.Env, c.Stdin = env, strings.NewReader(command+"\n")
		out, err := c.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v: %s", command, err, out)
		}
		return strings.TrimSpace(string(out))
	}
}

func TestAClientOfMPSHasWhatItsEnvironmentSays(t *testing.T) {
	in := install(t, oneCard("A100-SXM4-80GB"))
	env, speak := control(t, in)
	for limit, want := range map[string]uint64{"0=1024M": 1 << 30, "0=2G": 2 << 30} {
		c := probeCommand(in, "alloc-until-oom:1Mi")
		c.Env = append(append(in.Env(), env[:2]...), "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="+limit)
		out, err := c.Output()
		if err != nil {
			t.Fatal(err)
		}
		// A context of the node's is part of what the client takes.
		if taken := parseSteps(t, out)[0].Bytes; taken > want || taken < want-1<<30 {
			t.Errorf("a client with the limit %s took %d bytes", limit, taken)
		}
	}
	if pid := speak("get_server_list"); pid == "" {
		t.Error("no server")
	}
	if got := speak("nonsense"); got != "Invalid command" {
		t.Errorf("nonsense: %q", got)
	}
}

func TestAnExclusiveCardIsForClientsOfMPSAlone(t *testing.T) {
	in := install(t, oneCard("A100-SXM4-80GB"))
	dev := handle(t, openNVML(t, in), 0)
	if ret := dev.SetComputeMode(nvml.COMPUTEMODE_EXCLUSIVE_PROCESS); ret != nvml.SUCCESS {
		t.Fatalf("exclusive: %v", ret)
	}
	if mode, ret := dev.GetComputeMode(); ret != nvml.SUCCESS || mode != nvml.COMPUTEMODE_EXCLUSIVE_PROCESS {
		t.Errorf("mode %v, %v", mode, ret)
	}
	env, _ := control(t, in)
	run := func(extra ...string) (string, error) {
		c := exec.Command(in.Program(Probe), "alloc:1Gi")
		c.Env = append(in.Env(), extra...)
		out, err := c.CombinedOutput()
		return string(out), err
	}
	if out, err := run(env[0]); err != nil || !strings.Contains(out, "CUDA_SUCCESS") {
		t.Errorf("a client: %v: %s", err, out)
	}
	if out, _ := run("CUDA_MPS_PIPE_DIRECTORY=" + t.TempDir()); !strings.Contains(out, "CUDA_ERROR_DEVICE_UNAVAILABLE") {
		t.Errorf("a program that is no client: %s", out)
	}
}

func TestTheControlDaemonDoesNotStartWhereARealOneCouldNotWork(t *testing.T) {
	in := install(t, oneCard("A100-SXM4-80GB"))
	dir := t.TempDir()
	good := []string{"CUDA_MPS_PIPE_DIRECTORY=" + dir, "CUDA_MPS_LOG_DIRECTORY=" + dir, "CUDA_VISIBLE_DEVICES=GPU-1"}
	for name, tc := range map[string]struct {
		env  []string
		want string
	}{
		"no card":        {good[:2], "not the UUID of one card"},
		"two cards":      {append(good[:2:2], "CUDA_VISIBLE_DEVICES=GPU-1,GPU-2"), "not the UUID of one card"},
		"by number":      {append(good[:2:2], "CUDA_VISIBLE_DEVICES=0"), "not the UUID of one card"},
		"no pipe folder": {good[1:], "CUDA_MPS_PIPE_DIRECTORY must be set"},
	} {
		c := exec.Command(filepath.Join(in.DriverRoot, "usr/bin/nvidia-cuda-mps-control"), "-f")
		c.Env = tc.env
		out, err := c.CombinedOutput()
		if err == nil || !strings.Contains(string(out), tc.want) {
			t.Errorf("%s: %v: %s", name, err, out)
		}
	}
}
