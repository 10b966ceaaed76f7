// Command sluice-quota is the quota controller: it admits pods, jobs and claims
// within the budgets of ClusterQueues and Cohorts.
package main

import (
	"flag"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"k8s.io/component-base/version"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	crmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/sluice-gpu/sluice/quota/config"
	"github.com/sluice-gpu/sluice/quota/controller"
	"github.com/sluice-gpu/sluice/quota/webhook"
)

type options struct {
	config      string
	metrics     string
	health      string
	leaderElect bool
	qps         float32
	burst       int
	noWebhook   bool
	webhook     webhook.Options
}

func main() {
	if err := command().Execute(); err != nil {
		fmt.Fprintln(os.Stderr, "sluice-quota:", err)
		os.Exit(1)
	}
}

func command() *cobra.Command {
	o := options{}
	c := &cobra.Command{
		Use:           "sluice-quota",
		Short:         "Admits pods, jobs and claims within the budgets of ClusterQueues and Cohorts",
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       version.Get().GitVersion,
		RunE:          func(*cobra.Command, []string) error { return run(o) },
	}
	f := c.Flags()
	f.StringVar(&o.config, "config", "", "QuotaConfiguration file, or a Configuration of Kueue; empty for the defaults")
	f.StringVar(&o.metrics, "metrics-bind-address", ":8080", "address of the metrics endpoint, 0 for none")
	f.StringVar(&o.health, "health-probe-bind-address", ":8081", "address of /healthz and /readyz")
	f.BoolVar(&o.leaderElect, "leader-elect", true, "let one of several replicas decide")
	f.Float32Var(&o.qps, "kube-api-qps", controller.QPS, "requests a second to the API server")
	f.IntVar(&o.burst, "kube-api-burst", controller.Burst, "burst of requests to the API server")
	f.BoolVar(&o.noWebhook, "no-webhook", false, "serve no webhook: pods are adopted instead of being gated at creation")
	f.StringVar(&o.webhook.Namespace, "namespace", envOr("POD_NAMESPACE", "sluice-system"), "namespace of the controller, its Service, Secret and lease")
	f.StringVar(&o.webhook.Service, "webhook-service", "sluice-quota", "Service in front of the webhook")
	f.StringVar(&o.webhook.Secret, "webhook-secret", "sluice-quota-webhook", "Secret that keeps the webhook's certificate")
	f.StringVar(&o.webhook.Configuration, "webhook-configuration", "sluice-quota", "MutatingWebhookConfiguration and ValidatingWebhookConfiguration that get the certificate's authority")
	f.StringVar(&o.webhook.Host, "webhook-host", "", "address that the webhook listens on; empty for all")
	f.IntVar(&o.webhook.Port, "webhook-port", 9443, "port that the webhook listens on")
	f.StringVar(&o.webhook.CertDir, "cert-dir", "/tmp/sluice-quota", "directory for the webhook's certificate")
	f.StringSliceVar(&o.webhook.SchedulerUsers, "scheduler-user", []string{"system:kube-scheduler"}, "user that makes claims for extended resources; may be repeated")
	klogFlags := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(klogFlags)
	f.AddGoFlag(klogFlags.Lookup("v"))
	return c
}

func run(o options) error {
	controller.TuneMemory()
	logger := klog.Background()
	ctrl.SetLogger(logger)
	cfg, err := config.Load(o.config)
	if err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	for _, field := range cfg.Unheeded() {
		logger.Info("a setting of the Kueue configuration is not honoured", "field", field)
	}
	rest, err := ctrl.GetConfig()
	if err != nil {
		return err
	}
	rest.QPS, rest.Burst = o.qps, o.burst
	options := ctrl.Options{
		Scheme:                        controller.Scheme(),
		Logger:                        logger,
		NewCache:                      controller.NewCache,
		Metrics:                       metricsserver.Options{BindAddress: o.metrics},
		HealthProbeBindAddress:        o.health,
		LeaderElection:                o.leaderElect,
		LeaderElectionID:              "sluice-quota",
		LeaderElectionNamespace:       o.webhook.Namespace,
		LeaderElectionReleaseOnCancel: true,
	}
	mgr, err := ctrl.NewManager(controller.Fenced(rest, &options), options)
	if err != nil {
		return err
	}
	ctx := ctrl.SetupSignalHandler()
	c, err := controller.Setup(ctx, mgr, cfg, crmetrics.Registry)
	if err != nil {
		return err
	}
	if !o.noWebhook {
		if err := webhook.Add(mgr, c, o.webhook); err != nil {
			return err
		}
	}
	if err := mgr.AddHealthzCheck("alive", c.Alive); err != nil {
		return err
	}
	if err := mgr.AddReadyzCheck("ready", c.Ready); err != nil {
		return err
	}
	logger.Info("starting", "version", version.Get().GitVersion, "placement", cfg.Placement, "quotaCheckStrategy", cfg.QuotaCheckStrategy)
	return mgr.Start(ctx)
}

func envOr(name, otherwise string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return otherwise
}
