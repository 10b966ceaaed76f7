package cluster

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"time"
)

// keyPair is a certificate (or, for service accounts, a bare public key) and its private key, PEM.
type keyPair struct{ cert, key []byte }

// authority signs the certificates of one cluster. Its key is kept in memory only: all certificates
// are made when the cluster is.
type authority struct {
	cert *x509.Certificate
	key  crypto.Signer
	pem  []byte
	now  time.Time
}

// identity is what a certificate says of its holder.
type identity struct {
	user   string   // common name
	groups []string // organizations
	ips    []string // addresses it serves
	names  []string // DNS names it serves
}

// certificateLife is longer than any cluster here lives; nothing is renewed.
const certificateLife = 5 * 365 * 24 * time.Hour

func newAuthority(cluster string, now time.Time) (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("certificate authority: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: "sluice-e2e-" + cluster},
		NotBefore:             now.Add(-time.Hour),
		NotAfter:              now.Add(certificateLife),
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("certificate authority: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("certificate authority: %w", err)
	}
	return &authority{cert: cert, key: key, pem: encodePEM("CERTIFICATE", der), now: now}, nil
}

// issue makes a key and a certificate that is good as a client's and, when it has addresses or
// names, as a server's.
func (a *authority) issue(id identity) (keyPair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return keyPair{}, fmt.Errorf("certificate of %s: %w", id.user, err)
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return keyPair{}, fmt.Errorf("certificate of %s: %w", id.user, err)
	}
	template := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: id.user, Organization: id.groups},
		NotBefore:    a.now.Add(-time.Hour),
		NotAfter:     a.now.Add(certificateLife),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		DNSNames:     id.names,
	}
	for _, ip := range id.ips {
		template.IPAddresses = append(template.IPAddresses, net.ParseIP(ip))
	}
	if len(id.ips)+len(id.names) > 0 {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		return keyPair{}, fmt.Errorf("certificate of %s: %w", id.user, err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return keyPair{}, fmt.Errorf("key of %s: %w", id.user, err)
	}
	return keyPair{cert: encodePEM("CERTIFICATE", der), key: encodePEM("EC PRIVATE KEY", keyDER)}, nil
}

// newSigningKey makes the key that signs service account tokens.
func newSigningKey() (keyPair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return keyPair{}, fmt.Errorf("service account key: %w", err)
	}
	private, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return keyPair{}, fmt.Errorf("service account key: %w", err)
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return keyPair{}, fmt.Errorf("service account key: %w", err)
	}
	return keyPair{cert: encodePEM("PUBLIC KEY", public), key: encodePEM("EC PRIVATE KEY", private)}, nil
}

func encodePEM(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}
