package sanity

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	healthv1 "k8s.io/kubelet/pkg/apis/dra-health/v1"
)

var healthChecks = []Check{
	{
		Name:     "health/reports-each-device",
		Contract: "The health stream tells the state of each published device soon after it is opened, again after it was closed and opened again, and of no device twice in a report.",
		Source:   srcHealth,
		run:      reportsEachDevice,
	},
	{
		Name:     "health/renews-within-its-timeout",
		Contract: "A report is good for its timeout, 30 seconds if it names none. The driver sends it again before, else the device's health is unknown in pod status.",
		Source:   srcHealth,
		run:      renewsWithinItsTimeout,
	},
}

// defaultLease is how long a kubelet believes a report that names no timeout.
const defaultLease = 30 * time.Second

type healthStream = grpc.GenericClientStream[healthv1.NodeWatchResourcesRequest, healthv1.NodeWatchResourcesResponse]

// watchHealth opens the health stream, if the plugin has one, and returns its
// first report.
func (c *scope) watchHealth(ctx context.Context) (*healthStream, *healthv1.NodeWatchResourcesResponse, error) {
	method := ""
	for _, s := range healthServices {
		if c.plugin.info != nil && c.plugin.offers(s.announced) {
			method = s.watch
			break
		}
	}
	if method == "" {
		return nil, nil, doesNotApply("the driver does not announce a health service")
	}
	raw, err := c.plugin.conn.NewStream(ctx, &healthv1.DRAResourceHealth_ServiceDesc.Streams[0], method)
	if err != nil {
		return nil, nil, violated(method, "%v", err)
	}
	stream := &healthStream{ClientStream: raw}
	if err := errors.Join(raw.SendMsg(&healthv1.NodeWatchResourcesRequest{}), raw.CloseSend()); err != nil && !errors.Is(err, io.EOF) {
		return nil, nil, violated(method, "%v", err)
	}
	report, err := stream.Recv()
	switch {
	case status.Code(err) == codes.Unimplemented:
		return nil, nil, doesNotApply("the driver does not report health: %v", err)
	case err != nil:
		return nil, nil, violated(method+": the first report", "%v", err)
	}
	return stream, report, nil
}

// healthOf collects reports until each published device was told.
func (c *scope) healthOf(ctx context.Context) (map[string]*healthv1.DeviceHealth, *healthStream, error) {
	items, err := c.published(c.ctx)
	if err != nil {
		return nil, nil, err
	}
	stream, report, err := c.watchHealth(ctx)
	if err != nil {
		return nil, nil, err
	}
	known := map[string]*healthv1.DeviceHealth{}
	for {
		inReport := map[string]bool{}
		for _, d := range report.Devices {
			id := d.Device.GetPoolName() + "/" + d.Device.GetDeviceName()
			if inReport[id] {
				return nil, nil, violated("a health report", "device %s is in it twice", id)
			}
			inReport[id], known[id] = true, d
		}
		var missing []device
		for _, d := range devicesOf(items) {
			if known[d.String()] == nil {
				missing = append(missing, d)
			}
		}
		if len(missing) == 0 {
			return known, stream, nil
		}
		if report, err = stream.Recv(); err != nil {
			return nil, nil, violated("the health of each published device", "nothing about %s before the stream ended: %v", names(missing), err)
		}
	}
}

func reportsEachDevice(c *scope) error {
	for range 2 { // a kubelet that restarts opens the stream anew
		ctx, cancel := context.WithTimeout(c.ctx, 10*time.Second)
		known, _, err := c.healthOf(ctx)
		cancel()
		if err != nil {
			return err
		}
		for id, d := range known {
			asked := "the health of device " + id
			if _, ok := healthv1.HealthStatus_name[int32(d.Health)]; !ok {
				return violated(asked, "state %d, which is none", d.Health)
			}
			if at := time.Unix(d.LastUpdatedTime, 0); at.After(time.Now().Add(5 * time.Second)) {
				return violated(asked, "last updated at %s, which is in the future", at)
			}
		}
	}
	return nil
}

func renewsWithinItsTimeout(c *scope) error {
	ctx, cancel := context.WithCancel(c.ctx)
	defer cancel()
	known, stream, err := c.healthOf(ctx)
	if err != nil {
		return err
	}
	lease, due := defaultLease, map[string]bool{}
	for id, d := range known {
		due[id] = true
		if t := time.Duration(d.HealthCheckTimeoutSeconds) * time.Second; t > 0 {
			lease = min(lease, t)
		}
	}
	asked := fmt.Sprintf("a further report of each device within %s", lease)
	// Reports that were due in time and came late are as bad as none.
	timer := time.AfterFunc(lease+time.Second, cancel)
	defer timer.Stop()
	for len(due) > 0 {
		report, err := stream.Recv()
		if err != nil {
			return violated(asked, "nothing about %s: %v", keys(due), err)
		}
		for _, d := range report.Devices {
			delete(due, d.Device.GetPoolName()+"/"+d.Device.GetDeviceName())
		}
	}
	return nil
}
