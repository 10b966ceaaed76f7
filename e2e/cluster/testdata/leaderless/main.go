// Command leaderless is a process whose first thread has ended while others run and keep its socket
// open, as a process is for a moment that was killed. It prints the address that it listens on and
// ends when its standard input does.
package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"syscall"
)

// The first goroutine stays on the first thread from here on.
func init() { runtime.LockOSThread() }

func main() {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	defer listener.Close()
	go func() {
		fmt.Println(listener.Addr())
		io.Copy(io.Discard, os.Stdin) //nolint:errcheck // any end is one
		os.Exit(0)
	}()
	syscall.Syscall(syscall.SYS_EXIT, 0, 0, 0) // of this thread alone
}
