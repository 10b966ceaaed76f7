package controller_test

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

// A benchmark's replica can be asked where its time went, and what it wrote. Set
// the variable to a folder: each benchmark leaves profiles of the processor and of
// allocations there, and a list of all requests by kind.

// profileVariable names the folder.
const profileVariable = "SLUICE_BENCH_PROFILES"

// requests counts what a replica asks of the API server.
type requests struct {
	mu   sync.Mutex
	seen map[string]sent
}

// sent is how many requests of a kind there were, and how large their bodies.
type sent struct {
	count int
	bytes int64
}

// watch has a client's requests counted.
func (q *requests) watch(cfg *rest.Config) {
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTrip(func(r *http.Request) (*http.Response, error) {
			resp, err := next.RoundTrip(r)
			what := r.Method + " " + resourceOf(r.URL.Path)
			if err == nil && resp.StatusCode >= 300 {
				what += fmt.Sprint(" ", resp.StatusCode)
			}
			q.mu.Lock()
			defer q.mu.Unlock()
			if q.seen == nil {
				q.seen = map[string]sent{}
			}
			now := q.seen[what]
			q.seen[what] = sent{now.count + 1, now.bytes + max(0, r.ContentLength)}
			return resp, err
		})
	})
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// resourceOf is a path without names: "pods/status".
func resourceOf(path string) string {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	switch {
	case len(parts) > 2 && parts[0] == "api":
		parts = parts[2:]
	case len(parts) > 3 && parts[0] == "apis":
		parts = parts[3:]
	}
	if len(parts) > 2 && parts[0] == "namespaces" {
		parts = parts[2:]
	}
	if len(parts) > 2 {
		return parts[0] + "/" + parts[2]
	}
	return parts[0]
}

// ServeHTTP lists them, and begins to count anew.
func (q *requests) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	q.mu.Lock()
	defer q.mu.Unlock()
	all := slices.SortedFunc(maps.Keys(q.seen), func(a, b string) int { return cmp.Or(q.seen[b].count-q.seen[a].count, strings.Compare(a, b)) })
	for _, what := range all {
		n := q.seen[what]
		fmt.Fprintln(w, n.count, what, n.bytes/int64(n.count), "bytes each")
	}
	q.seen = nil
}

// cpuProfile begins a profile of the processor when it is first asked, and writes
// it when it is asked again.
type cpuProfile struct{ file *os.File }

func (p *cpuProfile) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	if p.file == nil {
		file, err := os.CreateTemp("", "profile")
		if err == nil {
			err = pprof.StartCPUProfile(file)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		p.file = file
		return
	}
	pprof.StopCPUProfile()
	defer os.Remove(p.file.Name())
	defer p.file.Close()
	if _, err := p.file.Seek(0, io.SeekStart); err == nil {
		_, _ = io.Copy(w, p.file)
	}
}

func allocations(w http.ResponseWriter, _ *http.Request) {
	_ = pprof.Lookup("allocs").WriteTo(w, 0)
}

// profiled begins to measure, if that is wanted; the result ends it.
func (r *replica) profiled(t testing.TB, name string) func() {
	folder := os.Getenv(profileVariable)
	if folder == "" {
		return func() {}
	}
	get := func(path, file string) {
		resp, err := http.Get(strings.TrimSuffix(r.metrics, "/metrics") + path)
		for deadline := time.Now().Add(time.Minute); err != nil; resp, err = http.Get(strings.TrimSuffix(r.metrics, "/metrics") + path) {
			if time.Now().After(deadline) {
				t.Fatal(err)
			}
			time.Sleep(time.Millisecond)
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err == nil && file != "" {
			err = os.WriteFile(filepath.Join(folder, name+file), b, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	get("/requests", "")
	get("/allocations", ".before.allocs")
	get("/cpu", "")
	return func() {
		get("/cpu", ".cpu")
		get("/allocations", ".allocs")
		get("/requests", ".requests")
		get("/metrics", ".metrics")
	}
}
