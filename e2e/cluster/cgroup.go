package cluster

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// cgroupParent is the folder, in every hierarchy, below which all clusters keep their cgroups.
const cgroupParent = "sluice-e2e"

// cgroupPath is the cgroup of a node, below the root of each hierarchy. The kubelet makes those of
// pods in it.
func cgroupPath(cluster, node string) string {
	return filepath.Join("/", cgroupParent, cluster, node)
}

// cgroups says where the machine's control groups are mounted.
type cgroups struct {
	// unified is the mount of a version 2 hierarchy that has the controllers; empty on a machine
	// whose controllers are in version 1 hierarchies.
	unified string
	// hierarchies are the mounts of version 1.
	hierarchies []string
	// beside is the mount of a version 2 hierarchy without controllers beside those of version 1.
	// runc puts containers into it too.
	beside string
}

// detectCgroups reads mountinfo (proc_pid_mountinfo(5)). A machine is version 2 when its cgroup2
// mount is the only one, and version 1 otherwise: hybrid machines mount an empty cgroup2 beside.
func detectCgroups(mountinfo []byte) (cgroups, error) {
	var c cgroups
	var unified string
	lines := bufio.NewScanner(bytes.NewReader(mountinfo))
	for lines.Scan() {
		mount, rest, ok := strings.Cut(lines.Text(), " - ")
		fields, kind := strings.Fields(mount), strings.Fields(rest)
		if !ok || len(fields) < 5 || len(kind) == 0 {
			continue
		}
		switch kind[0] {
		case "cgroup":
			if !slices.Contains(c.hierarchies, fields[4]) {
				c.hierarchies = append(c.hierarchies, fields[4])
			}
		case "cgroup2":
			if unified == "" {
				unified = fields[4]
			}
		}
	}
	if err := lines.Err(); err != nil {
		return cgroups{}, fmt.Errorf("mount table: %w", err)
	}
	if len(c.hierarchies) == 0 {
		c.unified = unified
	} else {
		c.beside = unified
	}
	if c.unified == "" && len(c.hierarchies) == 0 {
		return cgroups{}, errors.New("no cgroup hierarchy is mounted: mount cgroup2 on /sys/fs/cgroup")
	}
	return c, nil
}

func readCgroups() (cgroups, error) {
	data, err := os.ReadFile("/proc/thread-self/mountinfo")
	if err != nil {
		return cgroups{}, err
	}
	return detectCgroups(data)
}

// roots are the folders in which a cgroup has to be made.
func (c cgroups) roots() []string {
	if c.unified != "" {
		return []string{c.unified}
	}
	return c.hierarchies
}

// everywhere are the folders in which there can be cgroups of a cluster.
func (c cgroups) everywhere() []string {
	if c.beside != "" {
		return append(slices.Clone(c.roots()), c.beside)
	}
	return c.roots()
}

// create makes the cgroup in every hierarchy and lets its children use every controller.
func (c cgroups) create(path string) error {
	for _, root := range c.roots() {
		dir := root
		for _, part := range strings.Split(strings.Trim(path, "/"), "/") {
			if c.unified != "" {
				if err := delegateControllers(dir); err != nil {
					return err
				}
			}
			parent := dir
			dir = filepath.Join(dir, part)
			if err := os.Mkdir(dir, 0o755); err != nil && !os.IsExist(err) {
				return fmt.Errorf("cgroup: %w", err)
			}
			// Version 1 cpusets are born empty, and no process can enter an empty one.
			for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
				if c.unified == "" {
					if err := inherit(parent, dir, file); err != nil {
						return err
					}
				}
			}
		}
		if c.unified != "" {
			if err := delegateControllers(dir); err != nil {
				return err
			}
		}
	}
	return nil
}

// podControllers are what kubelet and runc use of version 2's controllers.
var podControllers = []string{"cpu", "cpuset", "hugetlb", "io", "memory", "pids"}

// delegateControllers lets the children of a version 2 cgroup use the controllers that it has.
func delegateControllers(dir string) error {
	available, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return fmt.Errorf("cgroup: %w", err)
	}
	var enable []string
	for _, controller := range strings.Fields(string(available)) {
		if slices.Contains(podControllers, controller) {
			enable = append(enable, "+"+controller)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte(strings.Join(enable, " ")), 0o644); err != nil {
		return fmt.Errorf("cgroup: cannot pass %v on below %s (does a process live in it?): %w", enable, dir, err)
	}
	return nil
}

func inherit(parent, child, file string) error {
	value, err := os.ReadFile(filepath.Join(parent, file))
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cgroup: %w", err)
	}
	if have, err := os.ReadFile(filepath.Join(child, file)); err == nil && len(bytes.TrimSpace(have)) > 0 {
		return nil
	}
	if err := os.WriteFile(filepath.Join(child, file), bytes.TrimSpace(value), 0o644); err != nil {
		return fmt.Errorf("cgroup: %w", err)
	}
	return nil
}

// remove takes the cgroup away with all below it, in every hierarchy, and the shared parents that
// are then empty. The processes in it must have been killed; a cgroup stays busy a moment longer
// than its last process, so remove is patient for a few seconds.
func (c cgroups) remove(path string) error {
	var errs []error
	for _, root := range c.everywhere() {
		errs = append(errs, removeCgroupTree(filepath.Join(root, path)))
		for dir := filepath.Dir(path); dir != "/"; dir = filepath.Dir(dir) {
			err := unix.Rmdir(filepath.Join(root, dir))
			if err != nil { // shared with another cluster, or gone
				break
			}
		}
	}
	return errors.Join(errs...)
}

func removeCgroupTree(dir string) error {
	var dirs []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			if os.IsNotExist(err) {
				return nil
			}
			return err
		}
		if d.IsDir() {
			dirs = append(dirs, path)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("cgroup: %w", err)
	}
	slices.Reverse(dirs)
	for _, d := range dirs {
		err := unix.Rmdir(d)
		for deadline := time.Now().Add(endPatience); err == unix.EBUSY && time.Now().Before(deadline); {
			time.Sleep(20 * time.Millisecond)
			err = unix.Rmdir(d)
		}
		if err != nil && err != unix.ENOENT {
			return fmt.Errorf("cgroup %s cannot be removed: %w", d, err)
		}
	}
	return nil
}
