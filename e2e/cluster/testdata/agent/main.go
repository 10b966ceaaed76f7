// Command agent is what the live tests run in pods: `api` asks the API server for its version by the
// in-cluster address, `lookup` looks up a name and says whether the answer came within a second, `webhook` refuses every object that it is asked about, `cat` and `write` read
// and write a file, `sleep` waits to be killed.
package main

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch args[0] {
	case "api":
		return api()
	case "lookup":
		start := time.Now()
		_, err := net.LookupHost("kubernetes.default.svc")
		fmt.Println(time.Since(start) < time.Second, err)
		return nil
	case "webhook":
		return webhook()
	case "cat":
		data, err := os.ReadFile(args[1])
		fmt.Print(string(data))
		return err
	case "write":
		return os.WriteFile(args[1], []byte(args[2]), 0o644)
	case "sleep":
		time.Sleep(time.Hour)
		return nil
	}
	return fmt.Errorf("unknown command %q", args[0])
}

func api() error {
	const account = "/var/run/secrets/kubernetes.io/serviceaccount/"
	ca, err := os.ReadFile(account + "ca.crt")
	if err != nil {
		return err
	}
	token, err := os.ReadFile(account + "token")
	if err != nil {
		return err
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	address := net.JoinHostPort(os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT"))
	request, err := http.NewRequest("GET", "https://"+address+"/version", nil)
	if err != nil {
		return err
	}
	request.Header.Set("Authorization", "Bearer "+string(token))
	client := http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	fmt.Println(address, response.Status)
	_, err = io.Copy(os.Stdout, response.Body)
	return err
}

func webhook() error {
	pair, err := tls.X509KeyPair([]byte(os.Getenv("CERT")), []byte(os.Getenv("KEY")))
	if err != nil {
		return err
	}
	server := http.Server{
		Addr:      ":8443",
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{pair}},
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			var review struct {
				Request struct {
					UID string `json:"uid"`
				} `json:"request"`
			}
			if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			json.NewEncoder(w).Encode(map[string]any{ //nolint:errcheck // the caller is gone then
				"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
				"response": map[string]any{"uid": review.Request.UID, "allowed": false, "status": map[string]any{"message": "refused by the pod"}},
			})
		}),
	}
	return server.ListenAndServeTLS("", "")
}
