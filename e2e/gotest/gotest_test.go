package gotest

import (
	"io"
	"strings"
	"testing"
)

func TestEventsBecomeOutcomesWithTheOutputOfWhatDidNotPass(t *testing.T) {
	stream := `{"Action":"output","Package":"p","Test":"A","Output":"fine\n"}
{"Action":"pass","Package":"p","Test":"A","Elapsed":0.5}
not an event
{"Action":"output","Package":"p","Test":"B","Output":"why\n"}
{"Action":"fail","Package":"p","Test":"B","Elapsed":1}
{"Action":"skip","Package":"p","Test":"C"}
`
	var log strings.Builder
	var got []Outcome
	failed, err := read(strings.NewReader(stream), &log, func(o Outcome) { got = append(got, o) })
	if err != nil || !failed {
		t.Fatalf("failed=%v err=%v, want a failed run", failed, err)
	}
	if len(got) != 3 || got[0].Failed() || got[0].Output != "" {
		t.Fatalf("outcomes: %+v", got)
	}
	if !got[1].Failed() || got[1].Output != "why\n" {
		t.Errorf("a failure carries its output, got %+v", got[1])
	}
	if !got[2].Failed() {
		t.Errorf("a skip counts as failed, got %+v", got[2])
	}
	if log.String() != "not an event\n" {
		t.Errorf("log: %q", log.String())
	}
}

func TestBuildErrorIsToldThoughNoTestRan(t *testing.T) {
	err := Run(t.TempDir(), []string{"GOWORK=off"}, io.Discard, func(Outcome) {}, "./nothing-here")
	if err == nil {
		t.Fatal("a package that does not exist must be an error")
	}
}
