package cluster

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// inotifyPerNode is about what a kubelet, a containerd and the pods on a node take.
const inotifyPerNode = 8

// enoughInotify refuses a cluster whose kubelets and containerds would fail one after another, for
// lack of inotify instances, with errors that do not say so. The limit is the machine's and other
// users' too, so that it is not raised here: whoever runs the machine is told how. room tells how
// many of the wanted instances there are.
func enoughInotify(nodes int, room func(want int) int) error {
	want := nodes * inotifyPerNode
	have := room(want)
	if have >= want {
		return nil
	}
	limit, _ := os.ReadFile("/proc/sys/fs/inotify/max_user_instances")
	return fmt.Errorf("%d nodes take about %d inotify instances and this user may have %d more, of %s in all: end what takes them (other clusters: `cluster --name NAME down`), or raise the limit with `sysctl fs.inotify.max_user_instances=1024`",
		nodes, want, have, strings.TrimSpace(string(limit)))
}

// inotifyRoom makes as many instances as are wanted, or as the kernel grants, and ends them.
func inotifyRoom(want int) int {
	var made []int
	for len(made) < want {
		fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
		if err != nil {
			break
		}
		made = append(made, fd)
	}
	for _, fd := range made {
		_ = unix.Close(fd)
	}
	return len(made)
}
