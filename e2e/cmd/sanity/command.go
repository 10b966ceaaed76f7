package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/sluice-gpu/sluice/e2e/sanity"
	"github.com/sluice-gpu/sluice/e2e/sanity/apiserver"
)

type options struct {
	driver                         sanity.Driver
	kubeconfig, bin                string
	startCommand, log              string
	kubeletDir, cdiDir, parameters string
	list                           bool
}

func newCommand() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "sanity --driver-name NAME (--start-command COMMAND | --socket PATH)",
		Short: "Check a DRA driver against what a kubelet expects of it",
		Long: `sanity takes the place of a kubelet and of the scheduler: it registers the
driver's plugin, allocates the devices that it publishes, and prepares and
unprepares claims in the ways in which a kubelet does over time. No kubelet may
serve the node meanwhile.

With --start-command it starts the driver itself, and again where a check asks
for it. The command is given to sh and finds in its environment
  KUBECONFIG          access to the API server, with all rights
  NODE_NAME           the node to publish for
  KUBELET_DIR         stands for /var/lib/kubelet
  REGISTRY_DIR        stands for /var/lib/kubelet/plugins_registry
  PLUGINS_DIR         stands for /var/lib/kubelet/plugins
  CDI_DIR             stands for /var/run/cdi
  POD_UID             with --overlap: another one at each start
It must not end before the driver ends; "exec" sees to that.

Without --kubeconfig it runs etcd and a kube-apiserver on loopback.`,
		Example: `  sanity --driver-name gpu.example.com --start-command 'exec dra-example-kubeletplugin
      --node-name $NODE_NAME --cdi-root $CDI_DIR --kubelet-plugins-directory-path $PLUGINS_DIR
      --kubelet-registrar-directory-path $REGISTRY_DIR'`,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.list {
				_, err := io.WriteString(cmd.OutOrStdout(), sanity.Table())
				return err
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			return run(ctx, o, cmd.OutOrStdout())
		},
	}
	d, f := &o.driver, cmd.Flags()
	f.StringVar(&d.Name, "driver-name", "", "name of the DRA driver")
	f.StringVar(&d.NodeName, "node-name", "sanity", "node for which the driver publishes; made if it is not there")
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "API server of the driver; empty: one is started on loopback")
	f.StringVar(&o.bin, "bin-dir", "", "folder of etcd and kube-apiserver; empty: $SLUICE_CACHE/bin, by default ~/.cache/sluice/bin")
	f.StringVar(&o.startCommand, "start-command", "", "command that runs the driver")
	f.StringVar(&o.log, "driver-log", "", "file for what the driver prints; empty: it is dropped")
	f.StringVar(&o.kubeletDir, "kubelet-dir", "", "the kubelet's folder, in which plugins_registry is; empty: /var/lib/kubelet, with --start-command a new one")
	f.StringVar(&o.cdiDir, "cdi-dir", "", "folder in which the driver writes CDI specs; empty: /etc/cdi and /var/run/cdi, with --start-command a new one")
	f.StringVar(&d.Socket, "socket", "", "socket of the DRA service, for a driver that does not register")
	f.StringVar(&d.RegistrationSocket, "registration-socket", "", "registration socket; empty: looked for in plugins_registry")
	f.StringVar(&d.DeviceClass, "device-class", "", "DeviceClass for the claims; empty: one is made for the driver's devices")
	f.StringArrayVar(&d.Selectors, "selector", nil, "CEL expression; devices that do not match are not claimed (may be repeated)")
	f.StringVar(&o.parameters, "parameters", "", "opaque parameters for the driver, as JSON, in each claim")
	f.StringSliceVar(&d.Only, "only", nil, "names or patterns of the checks to run, such as slices/*")
	f.StringSliceVar(&d.Except, "except", nil, "names or patterns of checks to leave out")
	f.DurationVar(&d.Patience, "patience", 0, "how long the driver may take to publish, register and stop (default 1m)")
	f.DurationVar(&d.Quiet, "quiet", 0, "how long slices are watched for needless writes (default 30s)")
	f.DurationVar(&d.Reconcile, "reconcile", 0, "how long the driver may take to clean up by itself after a vanished claim; 0: not checked")
	f.BoolVar(&d.Overlap, "overlap", false, "the driver supports rolling updates: a second instance may be started while one runs, with another POD_UID in its environment")
	f.BoolVar(&o.list, "list", false, "list the checks as a table and end")
	return cmd
}

func run(ctx context.Context, o options, out io.Writer) error {
	d := o.driver
	if d.Name == "" {
		return errors.New("set --driver-name to the name of the DRA driver")
	}
	for _, pattern := range slices.Concat(d.Only, d.Except) {
		if _, err := path.Match(pattern, ""); err != nil {
			return fmt.Errorf("pattern %q: %w", pattern, err)
		}
	}
	if o.parameters != "" {
		if !json.Valid([]byte(o.parameters)) {
			return fmt.Errorf("--parameters is not JSON: %s", o.parameters)
		}
		d.Parameters = json.RawMessage(o.parameters)
	}
	if o.kubeconfig == "" {
		if o.startCommand == "" {
			return errors.New("set --kubeconfig to the API server of the driver that runs, or --start-command so that one is started")
		}
		server, err := apiserver.Start(ctx, o.bin)
		if err != nil {
			return err
		}
		defer server.Stop()
		o.kubeconfig = server.Kubeconfig()
	}
	var err error
	if d.API, err = clientcmd.BuildConfigFromFlags("", o.kubeconfig); err != nil {
		return fmt.Errorf("--kubeconfig: %w", err)
	}
	if o.startCommand != "" {
		cleanUp, err := o.prepareStart(&d)
		if err != nil {
			return err
		}
		defer cleanUp()
	} else {
		o.setDefaultFolders(&d)
	}
	counts := map[sanity.Outcome]int{}
	err = d.Check(ctx, func(r sanity.Result) {
		counts[r.Outcome]++
		fmt.Fprintln(out, r)
	})
	if err != nil {
		if o.startCommand != "" && o.log == "" {
			err = fmt.Errorf("%w\n--driver-log FILE keeps what the driver prints", err)
		}
		return err
	}
	fmt.Fprintf(out, "%d passed, %d failed, %d with advice, %d not applicable\n",
		counts[sanity.Passed], counts[sanity.Failed], counts[sanity.Advised], counts[sanity.NotApplicable])
	switch {
	case counts[sanity.Failed] > 0:
		return fmt.Errorf("%s fails %d checks", d.Name, counts[sanity.Failed])
	case counts[sanity.Passed] == 0:
		return fmt.Errorf("no check passed")
	}
	return nil
}

// setDefaultFolders names the folders of a driver that runs already.
func (o options) setDefaultFolders(d *sanity.Driver) {
	if o.kubeletDir == "" {
		o.kubeletDir = "/var/lib/kubelet"
	}
	if d.Socket == "" && d.RegistrationSocket == "" {
		d.RegistryDir = filepath.Join(o.kubeletDir, "plugins_registry")
	}
	if o.cdiDir != "" {
		d.CDIDirs = []string{o.cdiDir}
	}
}

// prepareStart makes the folders of a driver that the suite starts.
func (o options) prepareStart(d *sanity.Driver) (cleanUp func(), err error) {
	// A socket's path has at most 107 bytes (unix(7)): those here are as short
	// as below /var/lib/kubelet.
	dir, err := os.MkdirTemp("/tmp", "s")
	if err != nil {
		return nil, err
	}
	var log *os.File
	cleanUp = func() {
		_ = os.RemoveAll(dir)
		if log != nil {
			_ = log.Close()
		}
	}
	defer func() {
		if err != nil {
			cleanUp()
		}
	}()
	if o.kubeletDir == "" {
		o.kubeletDir = dir
	}
	if o.cdiDir == "" {
		o.cdiDir = filepath.Join(dir, "cdi")
	}
	d.RegistryDir = filepath.Join(o.kubeletDir, "plugins_registry")
	plugins := filepath.Join(o.kubeletDir, "plugins")
	for _, folder := range []string{d.RegistryDir, plugins, o.cdiDir} {
		if err := os.MkdirAll(folder, 0o755); err != nil {
			return nil, err
		}
	}
	d.CDIDirs = []string{o.cdiDir}
	d.Command = []string{"/bin/sh", "-c", o.startCommand}
	d.Env = []string{
		"KUBECONFIG=" + o.kubeconfig, "NODE_NAME=" + d.NodeName, "KUBELET_DIR=" + o.kubeletDir,
		"REGISTRY_DIR=" + d.RegistryDir, "PLUGINS_DIR=" + plugins, "CDI_DIR=" + o.cdiDir,
	}
	if o.log != "" {
		if log, err = os.Create(o.log); err != nil {
			return nil, err
		}
		d.Output = log
	}
	return cleanUp, nil
}
