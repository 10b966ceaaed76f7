package monitor

import (
	"context"
	"encoding/binary"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/sluice-gpu/sluice/driver/gpu"
	"github.com/sluice-gpu/sluice/hook/account"
)

// bench is a node with one card, one share and one process, all made up.
type bench struct {
	*Monitor
	t       *testing.T
	dir     string // of the share
	account *os.File
	use     []gpu.Use
	client  *fake.Clientset
}

func (b *bench) Use() ([]gpu.Use, error) { return b.use, nil }

const cardUUID = "GPU-a0000000-1111-2222-3333-000000000000"

func newBench(t *testing.T, limit uint64) *bench {
	t.Helper()
	b := &bench{t: t, dir: filepath.Join(t.TempDir(), "share"), client: fake.NewClientset()}
	card, err := account.ParseUUID(cardUUID)
	if err != nil {
		t.Fatal(err)
	}
	if err := account.Create(b.dir, account.Limit{Card: card, Memory: limit}, account.Grant{CoreRate: 7, BusyFactor: 9}); err != nil {
		t.Fatal(err)
	}
	claim := &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "claim", UID: "claim-uid"},
		Status: resourceapi.ResourceClaimStatus{ReservedFor: []resourceapi.ResourceClaimConsumerReference{
			{Resource: "pods", Name: "trainer", UID: podUID},
		}},
	}
	if err := b.client.Tracker().Add(claim); err != nil {
		t.Fatal(err)
	}
	proc := t.TempDir()
	for name, text := range map[string]string{
		"42/cgroup": "0::/kubepods/pod" + podUID + "/abc\n",
		"42/mountinfo": "1 1 1:1 /var/lib/kubelet/pods/" + podUID + "/containers/main/x /dev/termination-log rw - ext4 /dev/x rw\n" +
			"2 1 1:1 /x/account /run/sluice/shares/s/account rw - ext4 /dev/x rw\n",
		"43/cgroup": "0::/system.slice/mined.service\n",
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(proc, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(proc, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	share := Share{
		Name: "s", Claim: types.NamespacedName{Namespace: "team", Name: "claim"}, ClaimUID: "claim-uid",
		Device: "gpu-a0000000", Card: cardUUID, Limit: limit, Cores: 50, Dir: b.dir,
	}
	b.Monitor = New(Config{
		NodeName: "n1", KubeClient: b.client, Cards: b, Proc: proc,
		Shares:     func() ([]Share, error) { return []Share{share}, nil },
		MemoryFile: filepath.Join(t.TempDir(), "memory.json"), LockFile: filepath.Join(t.TempDir(), "lock"),
	})
	t.Cleanup(b.unlock)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { b.users.run(ctx); close(ended) }()
	t.Cleanup(func() { cancel(); <-ended })
	return b
}

// runs makes process 42 hold that much of the card by NVML, and its account say what it was
// charged for it, with one context.
func (b *bench) runs(nvml, charged, perContext uint64) {
	b.t.Helper()
	b.use = []gpu.Use{{UUID: cardUUID, Model: "A100", Processes: []gpu.ProcessUse{{PID: 42, Memory: nvml}}}}
	if b.account == nil {
		f, err := os.OpenFile(filepath.Join(b.dir, account.AccountFile), os.O_RDWR, 0)
		if err != nil {
			b.t.Fatal(err)
		}
		b.account = f
		b.t.Cleanup(func() { _ = f.Close() })
		// The lock of the first slot, as a living process holds it.
		lock := unix.Flock_t{Type: unix.F_WRLCK, Start: 0, Len: 1}
		if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &lock); err != nil {
			b.t.Fatal(err)
		}
	}
	// struct sluice_slot: applied, record[2], pid and contexts, busy, context units
	slot := make([]byte, 64)
	binary.LittleEndian.PutUint64(slot[8:], charged/account.Unit)
	binary.LittleEndian.PutUint32(slot[28:], 1)
	binary.LittleEndian.PutUint64(slot[40:], perContext/account.Unit)
	if _, err := b.account.WriteAt(slot, 4096); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) looks(n int) {
	b.t.Helper()
	for range n {
		b.slowAt = time.Time{} // all accounts are read
		if err := b.look(b.t.Context()); err != nil {
			b.t.Fatal(err)
		}
	}
}

func (b *bench) grants(want uint64) {
	b.t.Helper()
	g, err := account.ReadGrant(b.dir)
	if err != nil {
		b.t.Fatal(err)
	}
	if g.ContextOverhead != want || g.CoreRate != 7 || g.BusyFactor != 9 || g.Heartbeat == 0 {
		b.t.Errorf("granted %+v, want an overhead of %d and the rest as it was", g, want)
	}
}

func TestAGrantFollowsWhatContextsTake(t *testing.T) {
	b := newBench(t, 10<<30)
	b.looks(1)
	b.grants(0)
	b.runs(1300*mi, 1000*mi, 0)
	b.looks(3)
	b.grants(300 * mi) // once, though the process has not followed
	b.runs(1300*mi, 1300*mi, 300*mi)
	b.looks(3)
	b.grants(300 * mi)
	b.runs(1350*mi, 1300*mi, 300*mi)
	b.looks(2)
	b.grants(350 * mi)
	b.runs(1200*mi, 1300*mi, 300*mi)
	b.looks(2)
	b.grants(350 * mi) // never lowered under a living context
	if got := b.Start(cardUUID); got != 200*mi {
		t.Errorf("the next share starts with %d, want what was seen last", got)
	}
}

func TestAShareAboveItsLimitIsReportedOnce(t *testing.T) {
	b := newBench(t, 1<<30)
	b.runs(1<<30, 1<<30, 0)
	b.looks(1)
	b.askedForPods()
	b.runs(3<<30, 1<<30, 0)
	for end := time.Now().Add(sure + 200*time.Millisecond); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		b.looks(1)
	}
	var text []string
	for end := time.Now().Add(patience); time.Now().Before(end) && len(text) == 0; time.Sleep(20 * time.Millisecond) {
		events, err := b.client.CoreV1().Events("team").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range events.Items {
			text = append(text, e.InvolvedObject.Name+" "+e.Reason+" "+e.Message)
		}
	}
	b.looks(3)
	want := "trainer MemoryAboveShare The pod holds 3221225472 bytes of card gpu-a0000000, 2147483648 more than its share of 1073741824"
	if len(text) != 1 || !strings.HasPrefix(text[0], want) {
		t.Errorf("events %q", text)
	}
	labels := map[string]string{"claim": "claim", "container": "main", "device": "gpu-a0000000", "namespace": "team", "pod": "trainer", "share": "s"}
	b.measures("sluice_share_memory_above_limit_bytes", 2<<30, labels)
	b.measures("sluice_share_memory_nvml_bytes", 3<<30, labels)
	b.measures("sluice_share_memory_used_bytes", 1<<30, labels)
	b.measures("sluice_share_memory_limit_bytes", 1<<30, labels)
	b.measures("sluice_driver_shares_above_limit_total", 1, nil)
}

// measures compares the one series of a metric.
func (b *bench) measures(name string, want float64, labels map[string]string) {
	b.t.Helper()
	r := prometheus.NewPedanticRegistry()
	if err := r.Register(b); err != nil {
		b.t.Fatal(err)
	}
	families, err := r.Gather()
	if err != nil {
		b.t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		m := f.GetMetric()[0]
		got := map[string]string{}
		for _, l := range m.GetLabel() {
			got[l.GetName()] = l.GetValue()
		}
		if value := m.GetGauge().GetValue() + m.GetCounter().GetValue(); len(f.GetMetric()) != 1 || value != want || !maps.Equal(got, labels) {
			b.t.Errorf("%s: %d series, the first %v with %v; want %v with %v", name, len(f.GetMetric()), value, got, want, labels)
		}
		return
	}
	b.t.Errorf("no metric %s", name)
}

func TestTwoMonitorsOfANodeDoNotWriteTheSameGrant(t *testing.T) {
	b := newBench(t, 10<<30)
	b.looks(1)
	other := New(b.cfg)
	if other.writer() {
		t.Error("the second one writes while the first does")
	}
	b.unlock()
	if !other.writer() {
		t.Error("the second one does not take over")
	}
	other.unlock()
}

// TestAnMPSServerIsNoStranger: it runs on the card for the shares there.
func TestAnMPSServerIsNoStranger(t *testing.T) {
	b := newBench(t, 1<<30)
	for _, group := range []string{"0::/sluice-mps\n", "0::/../../../sluice-mps\n", "4:pids:/nodes/n1/sluice-mps\n"} {
		if err := os.WriteFile(filepath.Join(b.cfg.Proc, "43", "cgroup"), []byte(group), 0o600); err != nil {
			t.Fatal(err)
		}
		b.use = []gpu.Use{{UUID: cardUUID, Processes: []gpu.ProcessUse{{PID: 43, Memory: 1 << 20}}}}
		if err := b.look(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := b.last.cards[0].foreign; len(got) != 0 {
			t.Errorf("%q: foreign %v", group, got)
		}
	}
}

func TestProcessesOfNoPodAreStrangersAfterAWhile(t *testing.T) {
	b := newBench(t, 10<<30)
	b.use = []gpu.Use{{UUID: cardUUID, Processes: []gpu.ProcessUse{{PID: 43, Memory: 1}, {PID: 44, Memory: 1}}}}
	b.looks(1)
	if b.Foreign(cardUUID) {
		t.Error("at once")
	}
	b.foreign[cardUUID] = time.Now().Add(-strange)
	b.looks(1)
	if !b.Foreign(cardUUID) {
		t.Error("not seen")
	}
	if n := len(b.last.cards[0].foreign); n != 1 {
		t.Errorf("%d foreign processes: one that ended between two readings is none", n)
	}
	b.use[0].Processes = nil
	b.looks(1)
	if b.Foreign(cardUUID) {
		t.Error("for ever")
	}
}
