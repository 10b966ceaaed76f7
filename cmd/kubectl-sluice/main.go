// Command kubectl-sluice is a plugin of kubectl: `kubectl sluice`. It shows the
// cards of a cluster and what is held of them, the budgets of the queues, and
// why something waits. It only reads, with the rights of whoever calls it.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"

	"github.com/spf13/cobra"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/sluice-gpu/sluice/cmd/kubectl-sluice/view"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := command().ExecuteContext(ctx)
	stop()
	if err != nil {
		os.Exit(1)
	}
}

// connection is how kubectl would reach the cluster.
type connection struct {
	rules     *clientcmd.ClientConfigLoadingRules
	overrides clientcmd.ConfigOverrides
}

func command() *cobra.Command {
	c := &connection{rules: clientcmd.NewDefaultClientConfigLoadingRules()}
	root := &cobra.Command{
		Use:   "kubectl-sluice",
		Short: "Cards, budgets, and why something waits",
		Long: `Shows what Sluice knows of a cluster's cards and queues.

It reads ResourceSlices, ResourceClaims, ClusterQueues and, for why, the pods
and Workloads of one namespace; what you may not read is an error.`,
		SilenceUsage: true,
		Annotations:  map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl sluice"},
	}
	f := root.PersistentFlags()
	f.StringVar(&c.rules.ExplicitPath, "kubeconfig", "", "kubeconfig file; empty: as kubectl finds it")
	f.StringVar(&c.overrides.CurrentContext, "context", "", "context of the kubeconfig file")
	f.StringVarP(&c.overrides.Context.Namespace, "namespace", "n", "", "namespace; empty: the context's")

	var node string
	cards := &cobra.Command{
		Use:   "cards",
		Short: "Every card and MIG device: what claims hold of its memory and cores, and whether it is well",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.cards(cmd.Context(), cmd.OutOrStdout(), node)
		},
	}
	cards.Flags().StringVar(&node, "node", "", "cards of this node alone")
	root.AddCommand(cards,
		&cobra.Command{
			Use:   "queues",
			Short: "Every ClusterQueue: what it may use, uses and borrows",
			Args:  cobra.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error {
				return c.queues(cmd.Context(), cmd.OutOrStdout())
			},
		},
		&cobra.Command{
			Use:   "why [KIND/]NAME",
			Short: "How far a pod, job, claim or workload has come, and what it waits for",
			Example: `  kubectl sluice why train           # whatever has this name
  kubectl sluice why pod/train-7xk2p -n team-a`,
			Args: cobra.ExactArgs(1),
			RunE: func(cmd *cobra.Command, args []string) error {
				return c.why(cmd.Context(), cmd.OutOrStdout(), args[0])
			},
		})
	return root
}

// open returns a client and the namespace in question.
func (c *connection) open() (client.Client, string, error) {
	config := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(c.rules, &c.overrides)
	rest, err := config.ClientConfig()
	if err != nil {
		return nil, "", err
	}
	namespace, _, err := config.Namespace()
	if err != nil {
		return nil, "", err
	}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, kueue.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, "", err
		}
	}
	cl, err := client.New(rest, client.Options{Scheme: scheme})
	return cl, namespace, err
}

func (c *connection) cards(ctx context.Context, out io.Writer, node string) error {
	cl, _, err := c.open()
	if err != nil {
		return err
	}
	slices, claims := &resourceapi.ResourceSliceList{}, &resourceapi.ResourceClaimList{}
	if err := cl.List(ctx, slices); err != nil {
		return err
	}
	if err := cl.List(ctx, claims); err != nil {
		return err
	}
	table := view.Cards(slices.Items, claims.Items, node)
	if len(table) == 1 {
		if node != "" {
			return fmt.Errorf("node %s offers no card: no ResourceSlice of its pool is there", node)
		}
		return fmt.Errorf("no node offers a card: no ResourceSlice of driver gpu.sluice.dev is there; look at the DaemonSet sluice-driver")
	}
	return table.Print(out)
}

func (c *connection) queues(ctx context.Context, out io.Writer) error {
	cl, _, err := c.open()
	if err != nil {
		return err
	}
	queues := &kueue.ClusterQueueList{}
	if err := cl.List(ctx, queues); err != nil {
		return err
	}
	return view.Queues(queues.Items).Print(out)
}
