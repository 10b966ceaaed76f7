package cluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Down ends the cluster, or what is there of it, and leaves no process, namespace, mount, cgroup,
// interface or file of it. It is no error that there is nothing.
func (c *Cluster) Down(ctx context.Context) error {
	if err := requireRoot(); err != nil {
		return err
	}
	unlock, err := c.lock()
	if err != nil {
		return err
	}
	defer unlock()
	left, err := c.leftovers()
	if err != nil {
		return err
	}
	if len(left) == 0 {
		c.logf("cluster %s: nothing is there", c.name)
		return nil
	}
	if err := os.Remove(c.path(upMark)); err != nil && !os.IsNotExist(err) {
		return err
	}
	names, err := clusterNetns(c.name)
	if err != nil {
		return err
	}
	if err := killInNetns(names); err != nil {
		return fmt.Errorf("cluster %s: %w", c.name, err)
	}
	for _, name := range names {
		if err := (ipCommand{batch: []string{"netns del " + name}}).run(ctx); err != nil {
			return err
		}
	}
	groups, err := readCgroups()
	if err != nil {
		return err
	}
	if err := groups.remove(filepath.Join("/", cgroupParent, c.name)); err != nil {
		return err
	}
	if err := os.RemoveAll(c.dir); err != nil {
		return err
	}
	// What is shared with other clusters goes with the last of them. Both calls refuse to remove
	// what is not empty.
	os.Remove(filepath.Dir(c.dir)) //nolint:errcheck
	if left, err := os.ReadDir(netnsDir); err == nil && len(left) == 0 {
		unix.Unmount(netnsDir, 0) //nolint:errcheck // ip(8) mounts the folder on itself
		os.Remove(netnsDir)       //nolint:errcheck
	}
	c.config = Config{}
	c.logf("cluster %s: down", c.name)
	return nil
}

// leftovers names what is there of the cluster.
func (c *Cluster) leftovers() ([]string, error) {
	left, err := clusterNetns(c.name)
	if err != nil {
		return nil, err
	}
	for i := range left {
		left[i] = "network namespace " + left[i]
	}
	if _, err := os.Stat(c.dir); err == nil {
		left = append(left, "folder "+c.dir)
	}
	groups, err := readCgroups()
	if err != nil {
		return nil, err
	}
	for _, root := range groups.everywhere() {
		dir := filepath.Join(root, cgroupParent, c.name)
		if _, err := os.Stat(dir); err == nil {
			left = append(left, "cgroup "+dir)
			break // one of several hierarchies is enough to say
		}
	}
	return left, nil
}

// killInNetns kills every process whose network namespace is one of the named, until there is none.
// The first processes of the machines are among them, and with them all else that runs on the
// machines ends.
func killInNetns(names []string) error {
	namespaces := map[uint64]string{}
	for _, name := range names {
		var st unix.Stat_t
		if err := unix.Stat(filepath.Join(netnsDir, name), &st); err != nil {
			return fmt.Errorf("network namespace %s: %w", name, err)
		}
		namespaces[st.Ino] = name
	}
	// A process that is ending loses its namespaces before it is gone, so what was found once is
	// followed to its end.
	ending := map[process]bool{}
	for deadline := time.Now().Add(endPatience); ; time.Sleep(20 * time.Millisecond) {
		found, err := processesIn(namespaces)
		if err != nil {
			return err
		}
		for _, pid := range found {
			if p, err := identify(pid); err == nil {
				ending[p] = true
			}
			if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("kill process %d: %w", pid, err)
			}
		}
		maps.DeleteFunc(ending, func(p process, _ bool) bool { return !p.alive() })
		if len(found) == 0 && len(ending) == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("processes %v do not end", found)
		}
	}
}

// processesIn lists the processes in the given network namespaces, but not this one.
func processesIn(namespaces map[uint64]string) ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var found []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		link, err := os.Readlink(filepath.Join("/proc", e.Name(), "ns/net"))
		if err != nil {
			continue // ended, or a zombie
		}
		inode, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimPrefix(link, "net:["), "]"), 10, 64)
		if err != nil {
			continue
		}
		if _, ours := namespaces[inode]; ours {
			found = append(found, pid)
		}
	}
	slices.Sort(found)
	return found, nil
}
