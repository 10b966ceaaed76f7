package apitest

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// portsVariable makes this test binary one that reserves ports until its input ends.
const portsVariable = "APITEST_RESERVE"

// portsTaken is how many it reserves, the first that are free.
const portsTaken = 100

func TestMain(m *testing.M) {
	if os.Getenv(portsVariable) == "" {
		os.Exit(m.Run())
	}
	taken, err := freePortsFrom(0, portsTaken)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println(strings.Trim(fmt.Sprint(taken), "[]"))
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
	os.Exit(0)
}

// TestNoTwoProcessesFindTheSamePort: another test binary has reserved the
// first ports and listens on none of them.
func TestNoTwoProcessesFindTheSamePort(t *testing.T) {
	other := exec.Command(os.Args[0])
	other.Env = append(os.Environ(), portsVariable+"=1")
	stdin, err := other.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := other.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	var theirs []int
	for _, field := range strings.Fields(line) {
		port, err := strconv.Atoi(field)
		if err != nil {
			t.Fatalf("the other process says: %s", line)
		}
		theirs = append(theirs, port)
	}
	if len(theirs) != portsTaken {
		t.Fatalf("%d ports of the other process, want %d", len(theirs), portsTaken)
	}
	mine := map[int]bool{}
	for range portsTaken {
		ports, err := freePortsFrom(0, 1)
		if err != nil {
			t.Fatal(err)
		}
		if slices.Contains(theirs, ports[0]) {
			t.Fatalf("port %d is the other process's", ports[0])
		}
		if mine[ports[0]] {
			t.Fatalf("port %d found twice", ports[0])
		}
		mine[ports[0]] = true
	}

	// What it had is free again with its end.
	stdin.Close()
	if err := other.Wait(); err != nil {
		t.Fatal(err)
	}
	for _, port := range theirs {
		// Somebody else may be fast, but not for all of them.
		if free, err := reserve(port); err != nil {
			t.Fatal(err)
		} else if free {
			return
		}
	}
	t.Error("no port of a process that has ended is free")
}

func TestAPortThatSomebodyListensOnIsNotFound(t *testing.T) {
	for range 10 {
		ports, err := freePorts(1)
		if err != nil {
			t.Fatal(err)
		}
		// The reservation is given up and the port is used, as by a program that
		// knows nothing of reservations.
		reserved.Lock()
		_ = reserved.sockets[len(reserved.sockets)-1].Close()
		reserved.Unlock()
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", ports[0]))
		if err != nil {
			t.Fatal(err)
		}
		free, err := reserve(ports[0])
		l.Close()
		if err != nil || free {
			t.Errorf("port %d: %v, %v", ports[0], free, err)
		}
	}
}
