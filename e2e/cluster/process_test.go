package cluster

import (
	"bufio"
	"errors"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// testPatience is how long a test waits for what must come to be. It costs nothing where it does.
const testPatience = 3 * time.Minute

func TestProcessHasEndedWhenTheLastOfItsThreadsHas(t *testing.T) {
	for s, want := range map[stat]bool{
		{state: 'S', threads: 7}: false,
		{state: 'Z', threads: 7}: false, // the first thread alone has ended
		{state: 'Z', threads: 1}: true,
		{state: 'X', threads: 0}: true,
	} {
		if got := s.ended(); got != want {
			t.Errorf("%+v: ended %v, want %v", s, got, want)
		}
	}
}

func TestProcessWhoseFirstThreadHasEndedIsAliveAndHoldsItsAddress(t *testing.T) {
	program := filepath.Join(t.TempDir(), "leaderless")
	if out, err := exec.Command("go", "build", "-o", program, "./testdata/leaderless").CombinedOutput(); err != nil {
		t.Fatalf("build: %v: %s", err, out)
	}
	cmd := exec.Command(program)
	input, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	output, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() }) //nolint:errcheck // it has ended if the test has passed
	address, err := bufio.NewReader(output).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	address = strings.TrimSpace(address)
	p, err := identify(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(testPatience); ; time.Sleep(time.Millisecond) {
		s, err := readStat(p.PID)
		if err != nil {
			t.Fatal(err)
		}
		if s.state == 'Z' {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the first thread has not ended: %+v", s)
		}
	}
	if _, err := net.Listen("tcp", address); !errors.Is(err, syscall.EADDRINUSE) {
		t.Fatalf("listening on %s beside the process: %v", address, err)
	}
	if !p.alive() || p.waitGone(0) {
		t.Error("a process that holds an address is said to have ended")
	}
	if again, err := identify(p.PID); err != nil || again != p {
		t.Errorf("it is identified as %+v, %v, want %+v", again, err, p)
	}
	input.Close()
	if !p.waitGone(testPatience) {
		t.Fatal("the process does not end")
	}
	free, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatalf("the process has ended and its address is taken: %v", err)
	}
	free.Close()
}
