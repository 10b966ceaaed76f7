package cluster

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
)

func TestCertificatesServeTheirAddressesAndNoOthers(t *testing.T) {
	now := time.Now()
	p, err := newPKI("demo", DefaultConfig(2), now)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(p.controlPlane["ca.crt"]) {
		t.Fatal("no CA certificate")
	}
	tests := map[string]struct {
		cert, key []byte
		good, bad []string
	}{
		"API server": {
			cert: p.controlPlane["apiserver.crt"], key: p.controlPlane["apiserver.key"],
			good: []string{"10.77.0.2", "10.96.0.1", "kubernetes.default.svc"}, bad: []string{"10.77.0.11", "node-1"},
		},
		"kubelet of node-1": {
			cert: p.nodes["node-1"]["kubelet.crt"], key: p.nodes["node-1"]["kubelet.key"],
			good: []string{"10.77.0.11", "node-1"}, bad: []string{"10.77.0.12", "10.77.0.2"},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if _, err := tls.X509KeyPair(test.cert, test.key); err != nil {
				t.Fatal(err)
			}
			block, _ := pem.Decode(test.cert)
			cert, err := x509.ParseCertificate(block.Bytes)
			if err != nil {
				t.Fatal(err)
			}
			for _, address := range test.good {
				if _, err := cert.Verify(x509.VerifyOptions{Roots: pool, DNSName: address, CurrentTime: now}); err != nil {
					t.Errorf("%s: %v", address, err)
				}
			}
			for _, address := range test.bad {
				if _, err := cert.Verify(x509.VerifyOptions{Roots: pool, DNSName: address, CurrentTime: now}); err == nil {
					t.Errorf("%s is served too", address)
				}
			}
		})
	}
}

func TestKubeconfigsNameTheUserThatKubernetesKnows(t *testing.T) {
	p, err := newPKI("demo", DefaultConfig(1), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct {
		file        []byte
		user, group string
	}{
		"administrator":      {p.admin, "admin", "system:masters"},
		"scheduler":          {p.controlPlane["scheduler.kubeconfig"], "system:kube-scheduler", ""},
		"controller manager": {p.controlPlane["controller-manager.kubeconfig"], "system:kube-controller-manager", ""},
		"kubelet":            {p.nodes["node-1"]["kubelet.kubeconfig"], "system:node:node-1", "system:nodes"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			config, err := clientcmd.RESTConfigFromKubeConfig(test.file)
			if err != nil {
				t.Fatal(err)
			}
			if config.Host != "https://10.77.0.2:443" {
				t.Errorf("server %s", config.Host)
			}
			block, _ := pem.Decode(config.CertData)
			cert, err := x509.ParseCertificate(block.Bytes)
			if err != nil {
				t.Fatal(err)
			}
			group := ""
			if len(cert.Subject.Organization) > 0 {
				group = cert.Subject.Organization[0]
			}
			if cert.Subject.CommonName != test.user || group != test.group {
				t.Errorf("user %q in group %q, want %q in %q", cert.Subject.CommonName, group, test.user, test.group)
			}
			if len(cert.ExtKeyUsage) == 0 || cert.ExtKeyUsage[0] != x509.ExtKeyUsageClientAuth {
				t.Errorf("key usage %v", cert.ExtKeyUsage)
			}
		})
	}
}
