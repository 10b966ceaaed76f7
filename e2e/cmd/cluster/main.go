// Command cluster runs a real Kubernetes cluster on this machine, for development and tests. It is
// flags and printing around package e2e/cluster.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/sluice-gpu/sluice/e2e/cluster"
	"github.com/sluice-gpu/sluice/e2e/testbed"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := command().ExecuteContext(ctx)
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		os.Exit(max(1, exit.ExitCode())) // the command has said what is wrong
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "cluster:", err)
		os.Exit(1)
	}
}

func command() *cobra.Command {
	var name string
	root := &cobra.Command{
		Use:           "cluster",
		Short:         "A real Kubernetes cluster on this machine, each node in namespaces of its own",
		SilenceUsage:  true,
		SilenceErrors: true,
		// kubectl, helm and exec take all that follows as it is, so --name has to come before.
		TraverseChildren: true,
		Args:             cobra.NoArgs, // anything left over is a command that does not exist
		RunE:             func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.PersistentFlags().StringVar(&name, "name", cluster.DefaultName, "name of the cluster; give it before the command's own arguments")
	open := func() (*cluster.Cluster, error) {
		return cluster.Open(cluster.Options{Name: name, Log: os.Stderr, Hardware: testbed.Hardware{}})
	}
	up := func() (*cluster.Cluster, error) {
		return cluster.Load(cluster.Options{Name: name, Log: os.Stderr, Hardware: testbed.Hardware{}})
	}
	root.AddCommand(
		buildCommand(), upCommand(open), downCommand(open), statusCommand(open), loadImageCommand(up),
		passCommand(up, "kubectl"), passCommand(up, "helm"), execCommand(up),
		nodeCommand(up, "restart COMPONENT", "Stop and start etcd, apiserver, controller-manager, scheduler, kubelet@NODE or containerd@NODE", (*cluster.Cluster).Restart),
		nodeCommand(up, "stop COMPONENT", "Stop a component", (*cluster.Cluster).StopComponent),
		nodeCommand(up, "start COMPONENT", "Start a component that was stopped or has died", (*cluster.Cluster).StartComponent),
		nodeCommand(up, "cut NODE", "Pull a node's network cable", (*cluster.Cluster).Cut),
		nodeCommand(up, "heal NODE", "Put a node's network cable back in", (*cluster.Cluster).Heal),
		nodeCommand(up, "reboot NODE", "Cut a node's power and boot it again", (*cluster.Cluster).Reboot),
		nodeCommand(up, "power-off NODE", "Cut a node's power", (*cluster.Cluster).PowerOff),
		nodeCommand(up, "power-on NODE", "Boot a node that is off", (*cluster.Cluster).PowerOn),
	)
	return root
}

type opener func() (*cluster.Cluster, error)

func buildCommand() *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use: "build", Short: "Build Kubernetes, etcd, containerd, Helm and the training operator into the cache folder ($SLUICE_CACHE or ~/.cache/sluice)", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			source, err := cluster.FindSource()
			if err != nil {
				return err
			}
			if all {
				return cluster.BuildAll(cmd.Context(), source, os.Stderr)
			}
			return cluster.Build(cmd.Context(), source, os.Stderr)
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "also the controllers that only tests run: JobSet, Trainer, MPI, Ray, Volcano, Kueue")
	return cmd
}

func upCommand(open opener) *cobra.Command {
	var nodes int
	var file string
	cmd := &cobra.Command{
		Use: "up", Short: "Bring the cluster up and wait until its nodes are ready", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			config := cluster.DefaultConfig(nodes)
			if file != "" {
				var err error
				if config, err = cluster.ReadConfig(file); err != nil {
					return err
				}
			}
			c, err := open()
			if err != nil {
				return err
			}
			err = c.Up(cmd.Context(), config)
			if errors.Is(err, cluster.ErrUp) {
				fmt.Fprintf(os.Stderr, "cluster %s is up already, with %d nodes\n", c.Name(), len(c.Config().Nodes))
				return nil
			}
			return err
		},
	}
	cmd.Flags().IntVar(&nodes, "nodes", 3, "number of plain nodes")
	cmd.Flags().StringVar(&file, "node-file", "", "YAML file that describes the nodes: names, labels, taints, GPUs")
	cmd.MarkFlagsMutuallyExclusive("nodes", "node-file")
	return cmd
}

func downCommand(open opener) *cobra.Command {
	return &cobra.Command{
		Use: "down", Short: "End the cluster and leave nothing of it", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := open()
			if err != nil {
				return err
			}
			return c.Down(cmd.Context())
		},
	}
}

func statusCommand(open opener) *cobra.Command {
	return &cobra.Command{
		Use: "status", Short: "Show the cluster's daemons and nodes", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := open()
			if err != nil {
				return err
			}
			status, err := c.Status(cmd.Context())
			fmt.Print(status)
			return err
		},
	}
}

func loadImageCommand(up opener) *cobra.Command {
	var nodes []string
	cmd := &cobra.Command{
		Use: "load-image ARCHIVE...", Short: "Give image archives (docker-archive or OCI tar) to the nodes", Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, archives []string) error {
			c, err := up()
			if err != nil {
				return err
			}
			for _, archive := range archives {
				if err := c.LoadImage(cmd.Context(), archive, nodes...); err != nil {
					return err
				}
			}
			return nil
		},
	}
	cmd.Flags().StringSliceVar(&nodes, "node", nil, "only to these nodes")
	return cmd
}

func passCommand(up opener, program string) *cobra.Command {
	return &cobra.Command{
		Use: program + " ARGS...", Short: "Run " + program + " as the cluster's administrator", DisableFlagParsing: true,
		RunE: func(_ *cobra.Command, args []string) error {
			c, err := up()
			if err != nil {
				return err
			}
			if len(args) > 0 && args[0] == "--" {
				args = args[1:]
			}
			cmd := exec.Command(c.Binary(program), args...)
			cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
			return c.Run(cmd)
		},
	}
}

func execCommand(up opener) *cobra.Command {
	cmd := &cobra.Command{
		Use: "exec MACHINE [--] COMMAND...", Short: "Run a command on a node, or on control-plane, in its namespaces", Args: cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := up()
			if err != nil {
				return err
			}
			argv := args[1:]
			if argv[0] == "--" {
				argv = argv[1:]
			}
			return c.NodeExec(cmd.Context(), args[0], os.Stdin, os.Stdout, os.Stderr, argv...)
		},
	}
	cmd.Flags().SetInterspersed(false)
	return cmd
}

// nodeCommand is a command with one argument, a node's or a component's name.
func nodeCommand(up opener, use, short string, do func(*cluster.Cluster, context.Context, string) error) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := up()
			if err != nil {
				return err
			}
			if err := do(c, cmd.Context(), args[0]); err != nil {
				return err
			}
			fmt.Fprintf(os.Stderr, "%s %s: done\n", strings.Fields(use)[0], args[0])
			return nil
		},
	}
}
