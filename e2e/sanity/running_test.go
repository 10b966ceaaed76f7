package sanity_test

import (
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/sluice-gpu/sluice/e2e/sanity"
)

// A driver that somebody else started is checked as far as that goes without
// ending it, found by its registration or by its own socket alone.
func TestADriverThatRunsAlreadyIsLeftRunning(t *testing.T) {
	t.Parallel()
	const podUID = "11111111-2222-3333-4444-555555555555"
	for _, c := range []struct {
		name     string
		bySocket bool
		mayNot   []string // groups of which nothing need apply
	}{
		{"found by its registration", false, []string{"restart"}},
		{"found by its socket", true, []string{"restart", "registration", "health"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			d := reference(t, none)
			client, err := kubernetes.NewForConfig(d.API)
			if err != nil {
				t.Fatal(err)
			}
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: d.NodeName}}
			if _, err := client.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command(d.Command[0])
			cmd.Env = append(cmd.Environ(), append(d.Env, "POD_UID="+podUID)...)
			cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			ended := make(chan struct{})
			go func() { _ = cmd.Wait(); close(ended) }()
			defer func() { _ = cmd.Process.Kill(); <-ended }()
			d.Command = nil
			d.Only = []string{"registration/*", "health/reports*", "prepare/*", "restart/*"}
			if c.bySocket {
				d.RegistryDir, d.Socket = "", filepath.Join(filepath.Dir(d.RegistryDir), "dra-"+podUID[:8]+".sock")
			}
			for _, r := range sanity.Run(t, d) {
				group, _, _ := strings.Cut(r.Check.Name, "/")
				if r.Outcome != sanity.Passed && !(r.Outcome == sanity.NotApplicable && slices.Contains(c.mayNot, group)) {
					t.Errorf("%s", r)
				}
				if r.Check.Restarts && r.Outcome != sanity.NotApplicable {
					t.Errorf("%s ran: it ends the driver", r.Check.Name)
				}
			}
			select {
			case <-ended:
				t.Errorf("the suite ended the driver: %s", cmd.ProcessState)
			default:
			}
		})
	}
}
