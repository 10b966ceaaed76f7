package apitest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"syscall"
	"testing"
)

// Programs that a test starts are told their port, so some time passes between
// the choice of a port and its use, in which another test binary could choose it
// as well: its clients then talk to this binary's API server. So a port is
// reserved first, by a Unix socket of its name without a file. Two processes
// cannot have the same one where they could have the same port, that is in one
// network namespace, and the kernel gives it up with the process that holds it,
// however that ends.
//
// The ports are below those that the kernel gives to connections, which would
// take them in that time without asking.
const (
	firstPort = 20000
	portCount = 10000
)

// reserved are the sockets that reserve ports, for as long as this process lives.
var reserved struct {
	sync.Mutex
	sockets []net.Listener
}

// FreeAddress is a loopback address that nobody listens on, reserved for this
// process.
func FreeAddress(t testing.TB) string {
	t.Helper()
	ports, err := freePorts(1)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("127.0.0.1:%d", ports[0])
}

// freePorts reserves loopback ports that nobody listens on.
func freePorts(n int) ([]int, error) { return freePortsFrom(rand.IntN(portCount), n) }

// freePortsFrom begins to look at one of the ports.
func freePortsFrom(from, n int) ([]int, error) {
	var ports []int
	for i := 0; i < portCount && len(ports) < n; i++ {
		port := firstPort + (from+i)%portCount
		switch free, err := reserve(port); {
		case err != nil:
			return nil, err
		case free:
			ports = append(ports, port)
		}
	}
	if len(ports) < n {
		return nil, fmt.Errorf("%d free ports asked, %d found of %d to %d", n, len(ports), firstPort, firstPort+portCount-1)
	}
	return ports, nil
}

// reserve takes a port for this process, unless it is reserved or in use.
func reserve(port int) (bool, error) {
	socket, err := net.Listen("unix", fmt.Sprintf("@sluice-apitest-port-%d", port))
	if err == nil {
		var used net.Listener
		if used, err = net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			err = used.Close()
		}
		if err == nil {
			reserved.Lock()
			defer reserved.Unlock()
			reserved.sockets = append(reserved.sockets, socket)
			return true, nil
		}
		_ = socket.Close()
	}
	if errors.Is(err, syscall.EADDRINUSE) {
		return false, nil
	}
	return false, fmt.Errorf("reserve port %d: %w", port, err)
}
