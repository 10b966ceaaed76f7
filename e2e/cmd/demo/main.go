// Command demo shows Sluice to somebody who has no GPU: a real cluster with simulated cards, the
// chart, pods that share cards, budgets that hold. Every line of its tables is read from API
// objects or printed by a program in a container; a step whose outcome is not what Sluice promises
// ends the demo with an error.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/sluice-gpu/sluice/e2e/testbed"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	root := &cobra.Command{Use: "demo", Short: "Show Sluice on a real cluster with simulated GPUs", SilenceUsage: true, SilenceErrors: true}
	name := root.PersistentFlags().String("name", "demo", "name of the cluster")
	root.AddCommand(upCommand(name), downCommand(name))
	if err := root.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

func options(name string) testbed.Options {
	return testbed.Options{Name: name, Reuse: true, Log: os.Stderr}
}

func upCommand(name *string) *cobra.Command {
	var broken string
	cmd := &cobra.Command{
		Use: "up", Short: "Start the cluster, install Sluice, show what it does", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return show(cmd.Context(), os.Stdout, options(*name), broken)
		},
	}
	cmd.Flags().StringVar(&broken, "break", "", "take one part away, to see that the demo notices: driver, limiter or ticket")
	return cmd
}

func downCommand(name *string) *cobra.Command {
	return &cobra.Command{
		Use: "down", Short: "End the cluster and leave nothing of it", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return testbed.Stop(cmd.Context(), options(*name))
		},
	}
}
