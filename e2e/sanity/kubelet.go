package sanity

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "k8s.io/kubelet/pkg/apis/dra-health/v1"
	healthv1alpha1 "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	drav1beta1 "k8s.io/kubelet/pkg/apis/dra/v1beta1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// plugin is a driver's kubelet plugin as the kubelet knows it: found by its
// registration socket and called at the endpoint that it named there.
type plugin struct {
	// socket is the registration socket; empty if the plugin does not register.
	socket string
	info   *registerapi.PluginInfo
	conn   *grpc.ClientConn
	limit  time.Duration
}

// services are the versions of the DRA service, the one that a kubelet prefers
// first. The messages of both are alike on the wire; the older one has no share
// ID.
var services = []struct{ announced, prepare, unprepare string }{
	{drapb.DRAPluginService, drapb.DRAPlugin_NodePrepareResources_FullMethodName, drapb.DRAPlugin_NodeUnprepareResources_FullMethodName},
	{drav1beta1.DRAPluginService, drav1beta1.DRAPlugin_NodePrepareResources_FullMethodName, drav1beta1.DRAPlugin_NodeUnprepareResources_FullMethodName},
}

// healthServices are the versions of the health service, alike on the wire but
// for the message that the older one lacks.
var healthServices = []struct{ announced, watch string }{
	{healthv1.DRAResourceHealthService, healthv1.DRAResourceHealth_NodeWatchResources_FullMethodName},
	{healthv1alpha1.DRAResourceHealthService, healthv1alpha1.DRAResourceHealth_NodeWatchResources_FullMethodName},
}

// offers tells whether the plugin announced a service.
func (p *plugin) offers(service string) bool {
	// A plugin that did not register was not asked: it must have the newest.
	if p.info == nil {
		return service == drapb.DRAPluginService
	}
	return slices.Contains(p.info.SupportedVersions, service)
}

// methods are those of the version that a kubelet would choose.
func (p *plugin) methods() (prepare, unprepare string) {
	for _, s := range services {
		if p.offers(s.announced) {
			return s.prepare, s.unprepare
		}
	}
	return services[0].prepare, services[0].unprepare
}

func (p *plugin) prepare(ctx context.Context, claims ...*drapb.Claim) (*drapb.NodePrepareResourcesResponse, error) {
	method, _ := p.methods()
	return p.prepareBy(ctx, method, claims)
}

func (p *plugin) prepareBy(ctx context.Context, method string, claims []*drapb.Claim) (*drapb.NodePrepareResourcesResponse, error) {
	response := &drapb.NodePrepareResourcesResponse{}
	err := p.call(ctx, method, &drapb.NodePrepareResourcesRequest{Claims: claims}, response)
	return response, err
}

func (p *plugin) unprepare(ctx context.Context, claims ...*drapb.Claim) (*drapb.NodeUnprepareResourcesResponse, error) {
	_, method := p.methods()
	return p.unprepareBy(ctx, method, claims)
}

func (p *plugin) unprepareBy(ctx context.Context, method string, claims []*drapb.Claim) (*drapb.NodeUnprepareResourcesResponse, error) {
	response := &drapb.NodeUnprepareResourcesResponse{}
	err := p.call(ctx, method, &drapb.NodeUnprepareResourcesRequest{Claims: claims}, response)
	return response, err
}

func (p *plugin) call(ctx context.Context, method string, request, response any) error {
	ctx, cancel := context.WithTimeout(ctx, p.limit)
	defer cancel()
	return p.conn.Invoke(ctx, method, request, response)
}

func (p *plugin) close() {
	if p != nil && p.conn != nil {
		_ = p.conn.Close()
	}
}

// dial prepares a connection to a socket; it is made at the first call.
func dial(socket string) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+socket,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, path string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		}))
}

// register does what a kubelet does with a socket that it finds in its registry
// folder: it asks who is there, and tells that the plugin is registered.
func register(ctx context.Context, socket string, d *Driver) (*plugin, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	conn, err := dial(socket)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	client := registerapi.NewRegistrationClient(conn)
	info, err := client.GetInfo(ctx, &registerapi.InfoRequest{})
	if err != nil {
		return nil, fmt.Errorf("%s: GetInfo: %w", socket, err)
	}
	if info.Name != d.Name {
		return nil, fmt.Errorf("%s: the plugin there is %q", socket, info.Name)
	}
	if _, err := client.NotifyRegistrationStatus(ctx, &registerapi.RegistrationStatus{PluginRegistered: true}); err != nil {
		return nil, fmt.Errorf("%s: NotifyRegistrationStatus: %w", socket, err)
	}
	endpoint := d.Socket
	if endpoint == "" {
		endpoint = info.Endpoint
	}
	p := &plugin{socket: socket, info: info, limit: d.CallTimeout}
	if p.conn, err = dial(endpoint); err != nil {
		return nil, err
	}
	return p, nil
}

// find looks for the plugin once.
func find(ctx context.Context, d *Driver) (*plugin, error) {
	if d.RegistryDir == "" && d.RegistrationSocket == "" {
		if err := isSocket(d.Socket); err != nil {
			return nil, err
		}
		conn, err := dial(d.Socket)
		return &plugin{conn: conn, limit: d.CallTimeout}, err
	}
	sockets := []string{d.RegistrationSocket}
	if d.RegistrationSocket == "" {
		var err error
		if sockets, err = socketsBelow(d.RegistryDir); err != nil {
			return nil, err
		}
	}
	var failures []error
	for _, socket := range sockets {
		p, err := register(ctx, socket, d)
		if err == nil {
			return p, nil
		}
		failures = append(failures, err)
	}
	if len(failures) == 0 {
		return nil, fmt.Errorf("no socket below %s", d.RegistryDir)
	}
	return nil, errors.Join(failures...)
}

// socketsBelow lists the sockets that a kubelet would look at, newest first:
// while a driver is updated there may be two of it.
func socketsBelow(dir string) ([]string, error) {
	made := map[string]time.Time{}
	err := filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if path != dir && strings.HasPrefix(entry.Name(), ".") {
			if entry.IsDir() {
				return filepath.SkipDir
			}
			return nil
		}
		if entry.Type()&os.ModeSocket == 0 {
			return nil
		}
		info, err := entry.Info()
		if err != nil {
			return nil // gone meanwhile
		}
		made[path] = info.ModTime()
		return nil
	})
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	var sockets []string
	for path := range made {
		sockets = append(sockets, path)
	}
	slices.SortFunc(sockets, func(a, b string) int {
		return made[b].Compare(made[a])
	})
	return sockets, nil
}

// isSocket tells whether a path is a socket that somebody listens on.
func isSocket(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if info.Mode()&os.ModeSocket == 0 {
		return fmt.Errorf("%s is not a socket", path)
	}
	conn, err := net.DialTimeout("unix", path, time.Second)
	if err != nil {
		return err
	}
	return conn.Close()
}
