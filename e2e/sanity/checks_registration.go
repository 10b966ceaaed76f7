package sanity

import (
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

var registrationChecks = []Check{
	{
		Name:     "registration/announces-a-dra-plugin",
		Contract: "The registration socket tells the type DRAPlugin, the driver's name, the absolute path of the socket that serves it, and at least one version of the DRA service that a kubelet knows.",
		Source:   srcRegistration,
		run:      announcesADRAPlugin,
	},
	{
		Name:     "registration/serves-every-announced-version",
		Contract: "A kubelet calls the service of the newest version that both know. Each announced version works, and they give the same answer.",
		Source:   srcProto,
		run:      servesEveryAnnouncedVersion,
	},
	{
		Name:     "registration/keeps-its-sockets",
		Contract: "Both sockets stay after the registration: a kubelet that restarts finds the plugin by them, asks again and registers it again.",
		Source:   srcRegistration,
		run:      keepsItsSockets,
	},
}

// registered is the plugin if it registers.
func (c *scope) registered() (*plugin, error) {
	if c.plugin.info == nil {
		return nil, doesNotApply("the suite was told the plugin's own socket and does not register it")
	}
	return c.plugin, nil
}

func announcesADRAPlugin(c *scope) error {
	p, err := c.registered()
	if err != nil {
		return err
	}
	asked := "GetInfo at " + p.socket
	if p.info.Type != registerapi.DRAPlugin {
		return violated(asked, "type %q, want %q", p.info.Type, registerapi.DRAPlugin)
	}
	if problems := validation.IsDNS1123Subdomain(p.info.Name); len(problems) > 0 || len(p.info.Name) > 63 {
		return violated(asked, "name %q is no DNS subdomain of at most 63 characters: %s", p.info.Name, strings.Join(problems, ", "))
	}
	if !filepath.IsAbs(p.info.Endpoint) {
		return violated(asked, "endpoint %q is not an absolute path", p.info.Endpoint)
	}
	known := false
	for _, s := range services {
		known = known || p.offers(s.announced)
	}
	if !known {
		return violated(asked, "versions %v, of which a kubelet knows none", p.info.SupportedVersions)
	}
	return nil
}

func servesEveryAnnouncedVersion(c *scope) error {
	p, err := c.registered()
	if err != nil {
		return err
	}
	claim, err := c.oneClaim()
	if err != nil {
		return err
	}
	first, by := "", ""
	for _, s := range services {
		if !p.offers(s.announced) {
			continue
		}
		claims := []*drapb.Claim{onWire(claim)}
		asked := fmt.Sprintf("%s of %s", s.prepare, describe(claim))
		response, err := p.prepareBy(c.ctx, s.prepare, claims)
		answers, err := understand(asked, c.claims[len(c.claims)-1:], response, err)
		if err != nil {
			return err
		}
		got := withoutShareIDs(answers[claim])
		if first != "" && got != first {
			return violated(asked, "%s\n%s answered: %s", got, by, first)
		}
		first, by = got, s.announced
	}
	for _, s := range services {
		if !p.offers(s.announced) {
			continue
		}
		response, err := p.unprepareBy(c.ctx, s.unprepare, []*drapb.Claim{onWire(claim)})
		if err := understandUnprepare([]*drapb.Claim{onWire(claim)}, response, err); err != nil {
			return err
		}
	}
	return nil
}

// withoutShareIDs is the answer as text, without what only the newest version
// can tell.
func withoutShareIDs(a answer) string {
	var plain answer
	for _, d := range a {
		plain = append(plain, &drapb.Device{RequestNames: d.RequestNames, PoolName: d.PoolName, DeviceName: d.DeviceName, CdiDeviceIds: d.CdiDeviceIds})
	}
	return plain.String()
}

func keepsItsSockets(c *scope) error {
	p, err := c.registered()
	if err != nil {
		return err
	}
	pause(c.ctx, 2*time.Second) // a plugin that closes them does so at once
	endpoint := c.d.Socket
	if endpoint == "" {
		endpoint = p.info.Endpoint
	}
	for _, socket := range []string{p.socket, endpoint} {
		if err := isSocket(socket); err != nil {
			return violated("the socket "+socket+" two seconds after the registration", "%v", err)
		}
	}
	again, err := register(c.ctx, p.socket, c.d)
	if err != nil {
		return violated("GetInfo and NotifyRegistrationStatus a second time, as after a restart of the kubelet", "%v", err)
	}
	again.close()
	if again.info.Endpoint != p.info.Endpoint {
		return violated("GetInfo a second time", "endpoint %s, the first time %s", again.info.Endpoint, p.info.Endpoint)
	}
	return nil
}
