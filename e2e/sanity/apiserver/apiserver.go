// Package apiserver runs etcd and a kube-apiserver on loopback, and nothing
// else of a cluster: what a DRA driver needs to publish slices and to read
// claims. The binaries are those of the local cluster, in $SLUICE_CACHE/bin (by
// default ~/.cache/sluice/bin); `make setup` builds them.
package apiserver

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

const (
	startsWithin = 90 * time.Second
	stopsWithin  = 10 * time.Second
)

// Server is a running API server. It gives every right to whoever has the
// kubeconfig.
type Server struct {
	dir     string
	running []*exec.Cmd
	config  *rest.Config
}

// Start starts an API server with nothing in it. The caller stops it. The
// binaries are looked for in the folder bin; empty: where the local cluster's
// are.
func Start(ctx context.Context, bin string) (*Server, error) {
	if bin == "" {
		var err error
		if bin, err = cacheBin(); err != nil {
			return nil, err
		}
	}
	dir, err := os.MkdirTemp("", "apiserver-")
	if err != nil {
		return nil, err
	}
	s := &Server{dir: dir}
	if err := s.start(ctx, bin); err != nil {
		s.Stop()
		return nil, err
	}
	return s, nil
}

func cacheBin() (string, error) {
	if cache := os.Getenv("SLUICE_CACHE"); cache != "" {
		return filepath.Join(cache, "bin"), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(home, ".cache", "sluice", "bin"), nil
}

func (s *Server) start(ctx context.Context, bin string) error {
	ports, err := freePorts(3)
	if err != nil {
		return err
	}
	secret := make([]byte, 16)
	if _, err := rand.Read(secret); err != nil {
		return err
	}
	token := hex.EncodeToString(secret)
	if err := s.writeSecrets(token); err != nil {
		return err
	}
	url := func(port int) string { return fmt.Sprintf("http://127.0.0.1:%d", port) }
	if err := s.run(bin, "etcd", "--data-dir", s.path("etcd"), "--unsafe-no-fsync", "--log-level", "error",
		"--listen-client-urls", url(ports[0]), "--advertise-client-urls", url(ports[0]),
		"--listen-peer-urls", url(ports[1]), "--initial-advertise-peer-urls", url(ports[1]),
		"--initial-cluster", "default="+url(ports[1])); err != nil {
		return err
	}
	if err := s.run(bin, "kube-apiserver", "--etcd-servers", url(ports[0]),
		"--bind-address", "127.0.0.1", "--secure-port", fmt.Sprint(ports[2]), "--cert-dir", s.path("certs"),
		"--service-account-issuer", "https://sanity", "--service-account-key-file", s.path("sa.pub"),
		"--service-account-signing-key-file", s.path("sa.key"), "--token-auth-file", s.path("tokens.csv"),
		"--authorization-mode", "RBAC",
		// Pods are made without the controller that makes service accounts.
		"--disable-admission-plugins", "ServiceAccount",
		"--service-cluster-ip-range", "10.0.0.0/24", "--endpoint-reconciler-type", "none"); err != nil {
		return err
	}
	s.config = &rest.Config{
		Host: fmt.Sprintf("https://127.0.0.1:%d", ports[2]), BearerToken: token,
		// The server makes its own certificate, which it also signs itself.
		TLSClientConfig: rest.TLSClientConfig{CAFile: s.path("certs/apiserver.crt"), ServerName: "kubernetes"},
	}
	if err := s.await(ctx); err != nil {
		return err
	}
	return s.writeKubeconfig()
}

// await waits until the server says that it is ready.
func (s *Server) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startsWithin)
	defer cancel()
	for {
		clients, err := kubernetes.NewForConfig(s.config)
		if err == nil {
			_, err = clients.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
		}
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("kube-apiserver is not ready after %s: %w; the end of its log:\n%s", startsWithin, err, s.tail("kube-apiserver"))
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// Config gives access with all rights.
func (s *Server) Config() *rest.Config { return rest.CopyConfig(s.config) }

// Kubeconfig is a file that gives the same access.
func (s *Server) Kubeconfig() string { return s.path("kubeconfig") }

// Stop ends the server and removes its files.
func (s *Server) Stop() {
	for i := len(s.running) - 1; i >= 0; i-- {
		c := s.running[i]
		_ = c.Process.Signal(syscall.SIGTERM)
		timer := time.AfterFunc(stopsWithin, func() { _ = c.Process.Kill() })
		_ = c.Wait()
		timer.Stop()
	}
	s.running = nil
	_ = os.RemoveAll(s.dir)
}

func (s *Server) path(name string) string { return filepath.Join(s.dir, name) }

func (s *Server) run(bin, name string, args ...string) error {
	program := filepath.Join(bin, name)
	if _, err := os.Stat(program); err != nil {
		return fmt.Errorf("%s is not built, run `make setup`: %w", name, err)
	}
	log, err := os.Create(s.path(name + ".log"))
	if err != nil {
		return err
	}
	defer log.Close()
	c := exec.Command(program, args...)
	c.Stdout, c.Stderr = log, log
	// Who is killed takes its servers with it.
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := c.Start(); err != nil {
		return fmt.Errorf("start of %s: %w", name, err)
	}
	s.running = append(s.running, c)
	return nil
}

func (s *Server) tail(name string) string {
	log, err := os.ReadFile(s.path(name + ".log"))
	if err != nil {
		return err.Error()
	}
	return string(log[max(0, len(log)-2000):])
}

// writeSecrets makes the administrator's token and the key for service account
// tokens, without which the server does not start.
func (s *Server) writeSecrets(token string) error {
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
		os.WriteFile(s.path("tokens.csv"), []byte(token+",admin,admin,system:masters\n"), 0o600),
	)
}

func (s *Server) writeKubeconfig() error {
	config := clientcmdapi.NewConfig()
	config.Clusters["c"] = &clientcmdapi.Cluster{Server: s.config.Host, CertificateAuthority: s.config.CAFile, TLSServerName: s.config.ServerName}
	config.AuthInfos["u"] = &clientcmdapi.AuthInfo{Token: s.config.BearerToken}
	config.Contexts["c"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	config.CurrentContext = "c"
	return clientcmd.WriteToFile(*config, s.Kubeconfig())
}

// freePorts finds ports of loopback on which nobody listens.
func freePorts(n int) ([]int, error) {
	var ports []int
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close() // all at the end, so that no port is found twice
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}
