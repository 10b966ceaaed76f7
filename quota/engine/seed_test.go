package engine

import (
	"flag"
	"os"
	"testing"
)

// worldsSeed is where the generated worlds of an ordinary `go test` begin, so that a run that fails
// can be run again. Other worlds: `go test -rapid.seed=N`.
const worldsSeed = "20261130"

func TestMain(m *testing.M) {
	flag.Parse()
	if seed := flag.Lookup("rapid.seed"); seed != nil && seed.Value.String() == seed.DefValue {
		if err := seed.Value.Set(worldsSeed); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}
