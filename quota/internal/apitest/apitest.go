// Package apitest gives tests a real API server: etcd and kube-apiserver of the
// pinned Kubernetes version on loopback, with the chart's policies if wanted,
// and on request the real controller-manager and scheduler, which work on bare
// Node objects as well as on nodes with a kubelet.
//
// Tests of policies, webhooks and controllers use it because what they promise
// is what the API server does, and no fake of it says how CEL, admission and
// conflicts really behave. The binaries are those of the local cluster, in
// $SLUICE_CACHE/bin (by default ~/.cache/sluice/bin); `make setup` builds them.
package apitest

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// Users whose tokens the API server knows.
const (
	adminToken      = "admin-token"
	managerToken    = "manager-token"
	schedulerToken  = "scheduler-token"
	tokens          = adminToken + ",admin,admin,system:masters\n" + managerToken + ",system:kube-controller-manager,kcm\n" + schedulerToken + ",system:kube-scheduler,sched\n"
	startsWithin    = Patience
	stopsWithin     = 30 * time.Second
	certificateName = "apiserver"
)

// Server is a running API server.
type Server struct {
	dir     string
	port    int
	mu      sync.Mutex
	running []*exec.Cmd
	// Admin may do everything.
	Admin *rest.Config
	// Clients of the admin.
	Clients *kubernetes.Clientset
	// operators are those that were started, with how that went.
	operators map[string]error
	// kueue is Kueue's manager, nil while none runs.
	kueue *exec.Cmd
}

var shared, sharedKueue struct {
	once   sync.Once
	server *Server
	err    error
}

// Main runs a package's tests and stops the shared servers after them. Call it
// from TestMain: os.Exit(apitest.Main(m)).
func Main(m *testing.M) int {
	code := m.Run()
	for _, s := range []*Server{shared.server, sharedKueue.server} {
		if s != nil {
			s.Stop()
		}
	}
	return code
}

// Shared returns the server of this package's tests, started at first use.
// Tests keep out of each other's way by namespaces of their own.
func Shared(t testing.TB) *Server {
	t.Helper()
	shared.once.Do(func() { shared.server, shared.err = Start() })
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.server
}

// Start starts etcd and an API server with nothing in it. The caller stops it.
func Start() (*Server, error) {
	dir, err := os.MkdirTemp("", "apitest-")
	if err != nil {
		return nil, err
	}
	s := &Server{dir: dir}
	if err := s.start(); err != nil {
		s.Stop()
		return nil, err
	}
	return s, nil
}

func (s *Server) start() error {
	ports, err := freePorts(3)
	if err != nil {
		return err
	}
	s.port = ports[2]
	if err := s.writeKeys(); err != nil {
		return err
	}
	etcd := fmt.Sprintf("http://127.0.0.1:%d", ports[0])
	peer := fmt.Sprintf("http://127.0.0.1:%d", ports[1])
	if err := s.run("etcd", "--data-dir", s.path("etcd"), "--unsafe-no-fsync",
		"--listen-client-urls", etcd, "--advertise-client-urls", etcd,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "default="+peer); err != nil {
		return err
	}
	if err := s.run("kube-apiserver", "--etcd-servers", etcd,
		"--bind-address", "127.0.0.1", "--secure-port", fmt.Sprint(s.port), "--cert-dir", s.path("certs"),
		"--service-account-issuer", "https://apitest", "--service-account-key-file", s.path("sa.pub"),
		"--service-account-signing-key-file", s.path("sa.key"), "--token-auth-file", s.path("tokens.csv"),
		"--authorization-mode", "RBAC", "--disable-admission-plugins", "ServiceAccount",
		"--service-cluster-ip-range", "10.0.0.0/24", "--endpoint-reconciler-type", "none"); err != nil {
		return err
	}
	s.Admin = s.config(adminToken)
	var last error
	err = wait.PollUntilContextTimeout(context.Background(), 100*time.Millisecond, startsWithin, true, func(ctx context.Context) (bool, error) {
		if s.Clients == nil {
			// The server makes its certificate when it starts.
			clients, err := kubernetes.NewForConfig(s.Admin)
			if err != nil {
				last = err
				return false, nil
			}
			s.Clients = clients
		}
		_, last = s.Clients.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
		return last == nil, nil
	})
	if err != nil {
		return fmt.Errorf("kube-apiserver is not ready after %s: %w\n%s", startsWithin, last, s.tail("kube-apiserver"))
	}
	return nil
}

// bareNodes are the controllers that can work where nobody reports for nodes.
const bareNodes = "*,-node-lifecycle-controller,-taint-eviction-controller,-pod-garbage-collector-controller"

// StartControllers runs the real kube-controller-manager (claims from
// templates, jobs, garbage collection; nodes are left alone, for nobody reports
// for bare ones) and kube-scheduler.
func (s *Server) StartControllers() error {
	if err := s.StartControllerManager(bareNodes); err != nil {
		return err
	}
	ports, err := freePorts(1)
	if err != nil {
		return err
	}
	if err := s.writeKubeconfig("kube-scheduler", schedulerToken); err != nil {
		return err
	}
	return s.run("kube-scheduler", "--kubeconfig", s.path("kube-scheduler.kubeconfig"), "--leader-elect=false",
		"--bind-address", "127.0.0.1", "--secure-port", fmt.Sprint(ports[0]))
}

// StartControllerManager runs the real kube-controller-manager with the named
// controllers alone.
func (s *Server) StartControllerManager(controllers string) error {
	ports, err := freePorts(1)
	if err != nil {
		return err
	}
	if err := s.writeKubeconfig("kube-controller-manager", managerToken); err != nil {
		return err
	}
	return s.run("kube-controller-manager", "--kubeconfig", s.path("kube-controller-manager.kubeconfig"),
		"--use-service-account-credentials", "--service-account-private-key-file", s.path("sa.key"),
		"--root-ca-file", s.path("certs/"+certificateName+".crt"), "--leader-elect=false",
		"--bind-address", "127.0.0.1", "--secure-port", fmt.Sprint(ports[0]),
		"--kube-api-qps", "1000", "--kube-api-burst", "2000", "--controllers", controllers)
}

func (s *Server) writeKubeconfig(name, token string) error {
	return os.WriteFile(s.path(name+".kubeconfig"), s.kubeconfig(token), 0o600)
}

// Stop ends what was started, newest first, and removes its files.
func (s *Server) Stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := len(s.running) - 1; i >= 0; i-- {
		c := s.running[i]
		_ = c.Process.Signal(syscall.SIGTERM)
		done := make(chan struct{})
		go func() { _ = c.Wait(); close(done) }()
		select {
		case <-done:
		case <-time.After(stopsWithin):
			_ = c.Process.Kill()
			<-done
		}
	}
	s.running = nil
	_ = os.RemoveAll(s.dir)
}

// As returns a configuration that acts as another user, in the groups that a
// user of that name has.
func (s *Server) As(user string, groups ...string) *rest.Config {
	c := rest.CopyConfig(s.Admin)
	c.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: append(groups, "system:authenticated")}
	return c
}

// ClientsAs returns clients that act as another user.
func (s *Server) ClientsAs(t testing.TB, user string, groups ...string) *kubernetes.Clientset {
	t.Helper()
	c, err := kubernetes.NewForConfig(s.As(user, groups...))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Log returns the end of what a component has written, for failing tests.
func (s *Server) Log(component string) string { return s.tail(component) }

func (s *Server) config(token string) *rest.Config {
	return &rest.Config{
		Host:            fmt.Sprintf("https://127.0.0.1:%d", s.port),
		BearerToken:     token,
		TLSClientConfig: rest.TLSClientConfig{CAFile: s.path("certs/" + certificateName + ".crt"), ServerName: "kubernetes"},
		QPS:             500,
		Burst:           1000,
	}
}

func (s *Server) kubeconfig(token string) []byte {
	return fmt.Appendf(nil, `apiVersion: v1
kind: Config
current-context: c
clusters: [{name: c, cluster: {server: "https://127.0.0.1:%d", certificate-authority: %q, tls-server-name: kubernetes}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
users: [{name: u, user: {token: %q}}]
`, s.port, s.path("certs/"+certificateName+".crt"), token)
}

func (s *Server) path(name string) string { return filepath.Join(s.dir, name) }

func (s *Server) run(name string, args ...string) error { return s.runWith(name, nil, args...) }

// runWith runs a binary with more in its environment.
func (s *Server) runWith(name string, env []string, args ...string) error {
	binary, err := Binary(name)
	if err != nil {
		return err
	}
	log, err := os.Create(s.path(name + ".log"))
	if err != nil {
		return err
	}
	defer log.Close()
	c := exec.Command(binary, args...)
	c.Stdout, c.Stderr = log, log
	c.Env = append(os.Environ(), env...)
	// A test binary that is killed takes its servers with it.
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := c.Start(); err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	s.mu.Lock()
	s.running = append(s.running, c)
	s.mu.Unlock()
	return nil
}

// Binary finds a binary of the local cluster.
func Binary(name string) (string, error) {
	dir := os.Getenv("SLUICE_CACHE")
	if dir == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", err
		}
		dir = filepath.Join(home, ".cache", "sluice")
	}
	path := filepath.Join(dir, "bin", name)
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("%s is not built, run `make setup`: %w", name, err)
	}
	return path, nil
}

func (s *Server) tail(component string) string {
	b, err := os.ReadFile(s.path(component + ".log"))
	if err != nil {
		return err.Error()
	}
	return string(b[max(0, len(b)-4000):])
}

func (s *Server) writeKeys() error {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	public, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(s.path("sa.key"), pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}), 0o600),
		os.WriteFile(s.path("sa.pub"), pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}), 0o600),
		os.WriteFile(s.path("tokens.csv"), []byte(tokens), 0o600),
	)
}
