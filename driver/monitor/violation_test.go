package monitor

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-gpu/sluice/driver/gpu"
)

// patience is how long a test waits for what must come to be. It costs nothing
// where it does.
const patience = 2 * time.Minute

// askedForPods waits until the monitor, which has looked, knows the pods of the
// claim.
func (b *bench) askedForPods() {
	b.t.Helper()
	u := b.Monitor.users
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(time.Millisecond) {
		u.mu.Lock()
		known := 0
		for _, c := range u.claims {
			known += len(c.pods)
		}
		u.mu.Unlock()
		if known > 0 {
			return
		}
	}
	b.t.Fatal("the claim's pods are not known")
}

// condition waits for what the claim's status says of its device.
func (b *bench) condition(want metav1.ConditionStatus) {
	b.t.Helper()
	got := "nothing"
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		claim, err := b.client.ResourceV1().ResourceClaims("team").Get(b.t.Context(), "claim", metav1.GetOptions{})
		if err != nil {
			b.t.Fatal(err)
		}
		if len(claim.Status.Devices) != 1 {
			continue
		}
		d := claim.Status.Devices[0]
		if c := meta.FindStatusCondition(d.Conditions, ConditionWithinShare); c != nil {
			got = string(c.Status) + " " + c.Message
			if c.Status == want && d.Driver == "gpu.sluice.dev" && d.Pool == "n1" && d.Device == "gpu-a0000000" && strings.Contains(c.Message, "its programs hold") {
				return
			}
		}
	}
	b.t.Errorf("the claim's condition is %s, want %s", got, want)
}

func (b *bench) above(d time.Duration) {
	b.looks(1)
	for _, e := range b.Monitor.above {
		e.since = e.since.Add(-d)
	}
	b.looks(1)
}

func TestAClaimTellsThatItsProgramsHoldMoreAndThatTheyDoNoMore(t *testing.T) {
	b := newBench(t, 1<<30)
	b.runs(3<<30, 1<<30, 0)
	b.above(sure)
	b.condition(metav1.ConditionFalse)
	b.runs(1<<30, 1<<30, 0)
	b.looks(1)
	b.condition(metav1.ConditionTrue)
}

func TestAShareWhoseProgramsEndedIsWithinItsLimit(t *testing.T) {
	b := newBench(t, 1<<30)
	b.runs(3<<30, 1<<30, 0)
	b.above(sure)
	b.condition(metav1.ConditionFalse)
	b.use = []gpu.Use{{UUID: cardUUID}}
	b.looks(1)
	b.condition(metav1.ConditionTrue)
	// What comes next has all of the time that is tolerated.
	if len(b.Monitor.above) != 0 {
		t.Errorf("still above: %v", b.Monitor.above)
	}
}

// process starts one that lasts, and makes the bench see it in the pod, or in
// another one.
func (b *bench) process(pod string) *exec.Cmd {
	b.t.Helper()
	c := exec.Command("sleep", "60")
	if err := c.Start(); err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
	b.owned(c.Process.Pid, pod)
	return c
}

func (b *bench) owned(pid int, pod string) {
	b.t.Helper()
	dir := filepath.Join(b.cfg.Proc, strconv.Itoa(pid))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		b.t.Fatal(err)
	}
	for name, text := range map[string]string{"cgroup": "0::/kubepods/pod" + pod + "/abc\n", "mountinfo": ""} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			b.t.Fatal(err)
		}
	}
}

// lives tells whether a process of the test runs: one that ended and was not
// waited for is a zombie.
func lives(c *exec.Cmd) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(c.Process.Pid) + "/stat")
	return err == nil && !strings.Contains(string(b), ") Z ")
}

func TestTheProcessThatHoldsTheMostIsKilledAfterTheTimeThatIsTolerated(t *testing.T) {
	b := newBench(t, 1<<30)
	tolerated := 10 * time.Second
	b.cfg.Kill = func() time.Duration { return tolerated }
	small, large := b.process(podUID), b.process(podUID)
	b.use = []gpu.Use{{UUID: cardUUID, Processes: []gpu.ProcessUse{{PID: small.Process.Pid, Memory: 1 << 30}, {PID: large.Process.Pid, Memory: 2 << 30}}}}
	b.looks(1)
	b.askedForPods()
	b.above(sure)
	b.looks(1)
	if !lives(large) {
		t.Fatal("killed at once")
	}
	b.above(tolerated)
	b.looks(2)
	for end := time.Now().Add(patience); time.Now().Before(end) && lives(large); time.Sleep(10 * time.Millisecond) {
	}
	if lives(large) {
		t.Error("the process that holds the most lives")
	}
	if !lives(small) {
		t.Error("the other one was killed with it")
	}
	b.measures("sluice_driver_processes_killed_total", 1, nil)
}

func TestNothingIsKilledWhereViolationsAreReported(t *testing.T) {
	b := newBench(t, 1<<30)
	b.cfg.Kill = func() time.Duration { return 0 }
	p := b.process(podUID)
	b.use = []gpu.Use{{UUID: cardUUID, Processes: []gpu.ProcessUse{{PID: p.Process.Pid, Memory: 2 << 30}}}}
	b.looks(1)
	b.above(time.Hour)
	b.looks(1)
	if time.Sleep(100 * time.Millisecond); !lives(p) {
		t.Error("it was killed")
	}
}

func TestAPIDThatBelongsToAnotherPodByNowIsNotKilled(t *testing.T) {
	b := newBench(t, 1<<30)
	p := b.process("11111111-2222-3333-4444-555555555555")
	err := b.kill(Process{PID: p.Process.Pid, Owner: Owner{Pod: podUID}})
	if err == nil || !strings.Contains(err.Error(), "belongs to pod") {
		t.Errorf("got %v", err)
	}
	if time.Sleep(100 * time.Millisecond); !lives(p) {
		t.Error("it was killed")
	}
}
