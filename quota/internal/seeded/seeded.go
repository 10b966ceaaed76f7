// Package seeded has the generated worlds of a package's tests begin at one seed, so
// that a run that fails can be run again.
package seeded

import (
	"flag"
	"testing"
)

// seed is where an ordinary `go test` begins. Other worlds: `go test -rapid.seed=N`.
const seed = "20261130"

// Main runs the tests of a package and returns what to exit with.
func Main(m *testing.M) int {
	flag.Parse()
	if f := flag.Lookup("rapid.seed"); f != nil && f.Value.String() == f.DefValue {
		if err := f.Value.Set(seed); err != nil {
			panic(err)
		}
	}
	return m.Run()
}
