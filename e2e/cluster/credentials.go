package cluster

import "time"

// pki is every key, certificate and kubeconfig of a cluster, by file name.
type pki struct {
	admin        []byte // kubeconfig
	controlPlane map[string][]byte
	nodes        map[string]map[string][]byte
}

// newPKI makes all credentials of a cluster. now is when they begin to be good.
func newPKI(cluster string, c Config, now time.Time) (*pki, error) {
	ca, err := newAuthority(cluster, now)
	if err != nil {
		return nil, err
	}
	tokens, err := newSigningKey()
	if err != nil {
		return nil, err
	}
	p := &pki{
		controlPlane: map[string][]byte{"ca.crt": ca.pem, "service-account.pub": tokens.cert, "service-account.key": tokens.key},
		nodes:        map[string]map[string][]byte{},
	}
	server, err := ca.issue(identity{
		user:  "kube-apiserver",
		ips:   []string{controlPlaneIP, apiServiceIP, "127.0.0.1"},
		names: []string{"kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost"},
	})
	if err != nil {
		return nil, err
	}
	p.controlPlane["apiserver.crt"], p.controlPlane["apiserver.key"] = server.cert, server.key
	kubelets, err := ca.issue(identity{user: "kube-apiserver-kubelet-client", groups: []string{"system:masters"}})
	if err != nil {
		return nil, err
	}
	p.controlPlane["kubelet-client.crt"], p.controlPlane["kubelet-client.key"] = kubelets.cert, kubelets.key
	config := func(id identity) ([]byte, keyPair, error) {
		pair, err := ca.issue(id)
		if err != nil {
			return nil, pair, err
		}
		file, err := kubeconfig(ca.pem, id.user, pair)
		return file, pair, err
	}
	if p.admin, _, err = config(identity{user: "admin", groups: []string{"system:masters"}}); err != nil {
		return nil, err
	}
	for _, name := range []string{"controller-manager", "scheduler"} {
		if p.controlPlane[name+".kubeconfig"], _, err = config(identity{user: "system:kube-" + name}); err != nil {
			return nil, err
		}
	}
	for i, n := range c.Nodes {
		file, pair, err := config(identity{
			user: "system:node:" + n.Name, groups: []string{"system:nodes"},
			ips: []string{nodeIP(i + 1).String()}, names: []string{n.Name},
		})
		if err != nil {
			return nil, err
		}
		p.nodes[n.Name] = map[string][]byte{
			"ca.crt": ca.pem, "kubelet.kubeconfig": file, "kubelet.crt": pair.cert, "kubelet.key": pair.key,
		}
	}
	return p, nil
}
