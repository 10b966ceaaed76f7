package controller_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	crconfig "sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/sluice-gpu/sluice/quota/config"
	"github.com/sluice-gpu/sluice/quota/controller"
	"github.com/sluice-gpu/sluice/quota/internal/apitest"
	"k8s.io/utils/ptr"
)

// A replica is the controller in a process of its own, which can be killed and
// whose cost can be told from that of the test: this test's binary, run again.

// replicaVariable holds, for such a process, what it is to do.
const replicaVariable = "SLUICE_TEST_REPLICA"

// replicaOrders are for one replica.
type replicaOrders struct {
	Host, Token, CAFile, ServerName string
	// As is who the token's owner says he is, "" for himself.
	As      string
	Metrics string
	Elect   bool
	// LeaseSeconds is how long a leader that is silent is believed to live.
	LeaseSeconds int
	Config       string
	// Floor is a load that is answered without the controller, see floor_test.go.
	Floor string
	// Hold is a file that the replica makes before it sends its first ticket. The
	// ticket is not sent before the file is gone.
	Hold string
}

// replicaMain is the process. It returns only on an error.
func replicaMain(orders string) error {
	var o replicaOrders
	if err := json.Unmarshal([]byte(orders), &o); err != nil {
		return err
	}
	cfg, err := config.Decode([]byte(o.Config))
	if err != nil {
		return err
	}
	controller.TuneMemory()
	lease := time.Duration(o.LeaseSeconds) * time.Second
	api := &rest.Config{
		Host: o.Host, BearerToken: o.Token,
		TLSClientConfig: rest.TLSClientConfig{CAFile: o.CAFile, ServerName: o.ServerName},
		QPS:             controller.QPS, Burst: controller.Burst,
	}
	if o.As != "" {
		api.Impersonate = rest.ImpersonationConfig{UserName: o.As, Groups: []string{"system:serviceaccounts", "system:serviceaccounts:sluice-system", "system:authenticated"}}
	}
	seen := &requests{}
	seen.watch(api)
	options := ctrl.Options{
		Scheme:   controller.Scheme(),
		NewCache: controller.NewCache,
		Metrics: metricsserver.Options{BindAddress: o.Metrics, ExtraHandlers: map[string]http.Handler{
			"/requests": seen, "/cpu": &cpuProfile{}, "/allocations": http.HandlerFunc(allocations),
		}},
		Controller:              crconfig.Controller{SkipNameValidation: ptr.To(true)},
		LeaderElection:          o.Elect,
		LeaderElectionID:        "sluice-quota",
		LeaderElectionNamespace: "sluice-system",
		LeaseDuration:           ptr.To(max(lease, 3*time.Second)),
		RenewDeadline:           ptr.To(max(lease, 3*time.Second) * 2 / 3),
		RetryPeriod:             ptr.To(max(lease, 3*time.Second) / 6),
	}
	api = controller.Fenced(api, &options)
	if o.Hold != "" {
		api.Wrap(holdTickets(o.Hold))
	}
	mgr, err := ctrl.NewManager(api, options)
	if err != nil {
		return err
	}
	ctx := ctrl.SetupSignalHandler()
	if o.Floor != "" {
		if err := addFloor(ctx, mgr, o.Floor); err != nil {
			return err
		}
		return mgr.Start(ctx)
	}
	if _, err := controller.Setup(ctx, mgr, cfg, metrics.Registry); err != nil {
		return err
	}
	return mgr.Start(ctx)
}

// replica is such a process, seen from the test.
type replica struct {
	cmd     *exec.Cmd
	metrics string
}

// startReplica runs the controller as its service account.
func startReplica(t testing.TB, s *apitest.Server, elect bool, cfg string) *replica {
	t.Helper()
	return startReplicaWith(t, s, replicaOrders{Elect: elect, Config: cfg})
}

func startReplicaWith(t testing.TB, s *apitest.Server, o replicaOrders) *replica {
	t.Helper()
	address := apitest.FreeAddress(t)
	o.Host, o.CAFile, o.ServerName = s.Admin.Host, s.Admin.CAFile, s.Admin.ServerName
	if o.Token == "" {
		o.Token, o.As = s.Admin.BearerToken, account
	}
	o.Metrics, o.LeaseSeconds = address, 6
	orders, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), replicaVariable+"="+string(orders))
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	r := &replica{cmd: cmd, metrics: "http://" + address + "/metrics"}
	t.Cleanup(r.kill)
	return r
}

// kill ends the process as a node that loses its power would.
func (r *replica) kill() {
	_ = r.cmd.Process.Kill()
	_ = r.cmd.Wait()
}

// sum adds up the series of a metric whose text contains all of these.
func (r *replica) sum(t testing.TB, name string, contains ...string) float64 {
	t.Helper()
	resp, err := http.Get(r.metrics)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	total := 0.0
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
next:
	for lines.Scan() {
		line := lines.Text()
		if !strings.HasPrefix(line, name+"{") && !strings.HasPrefix(line, name+" ") {
			continue
		}
		for _, c := range contains {
			if !strings.Contains(line, c) {
				continue next
			}
		}
		var v float64
		if _, err := fmt.Sscan(line[strings.LastIndexByte(line, ' ')+1:], &v); err != nil {
			t.Fatal(err)
		}
		total += v
	}
	return total
}

// writes is how many requests that change something the replica has made, and
// how many of them are events.
func (r *replica) writes(t testing.TB) float64 {
	total := 0.0
	for _, method := range []string{"POST", "PUT", "PATCH", "DELETE"} {
		total += r.sum(t, "rest_client_requests_total", `method="`+method+`"`)
	}
	return total
}

// cpu is the processor time that the replica has taken, in seconds.
func (r *replica) cpu(t testing.TB) float64 { return r.sum(t, "process_cpu_seconds_total") }
